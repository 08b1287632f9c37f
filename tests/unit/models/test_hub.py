"""Weights by a hub's name: the real client, against a hub of our own on the loopback interface.

Each look-up is a process of its own: the client reads its settings when it is imported.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from handler_server import handled_by
from headway import ConfigError
from headway.models.sources.weights import find_weights

NAME = "acme/tiny"
REVISIONS = {"main": "a" * 40, "v1": "b" * 40}
FILES = {
    "a" * 40: {"tokenizer.json": b'{"version": 2}', "model.onnx": b"new", "pytorch.bin": b"x" * 99},
    "b" * 40: {"tokenizer.json": b'{"version": 1}', "model.onnx": b"old"},
}


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as a download needs."""

    asked: list[str] = []  # noqa: RUF012 - set anew for each server

    def do_GET(self) -> None:
        self._reply(send_body=True)

    def do_HEAD(self) -> None:
        self._reply(send_body=False)

    def _reply(self, *, send_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(path)
        answer = answer_of(path)
        self.send_response(answer.status)
        for name, value in (*answer.headers, ("Content-Length", str(len(answer.body)))):
            self.send_header(name, value)
        self.end_headers()
        if send_body:
            self.wfile.write(answer.body)


def answer_of(path: str) -> Answer:
    api = f"/api/models/{NAME}"
    if path in (api, *(f"{api}/revision/{each}" for each in REVISIONS)):
        sha = REVISIONS[path.rpartition("/")[2] if "/revision/" in path else "main"]
        siblings = [{"rfilename": name} for name in FILES[sha]]
        return as_json({"id": NAME, "sha": sha, "siblings": siblings})
    if path.startswith(f"{api}/revision/"):
        return Answer(404, headers=(("X-Error-Code", "RevisionNotFound"),))
    if path.startswith(f"{api}/tree/"):
        return as_json([entry(name, data) for name, data in FILES[path.rpartition("/")[2]].items()])
    if path.startswith(f"/{NAME}/resolve/"):
        sha, _, name = path.removeprefix(f"/{NAME}/resolve/").partition("/")
        data = FILES[sha][name]
        etag = hashlib.sha1(data).hexdigest()
        return Answer(200, data, (("ETag", f'"{etag}"'), ("X-Repo-Commit", sha)))
    return Answer(404, headers=(("X-Error-Code", "RepoNotFound"),))


def as_json(value: object) -> Answer:
    return Answer(200, json.dumps(value).encode(), (("Content-Type", "application/json"),))


def entry(name: str, data: bytes) -> dict[str, object]:
    oid = hashlib.sha1(data).hexdigest()
    return {"type": "file", "path": name, "size": len(data), "oid": oid}


@pytest.fixture
def hub() -> Iterator[str]:
    pytest.importorskip("huggingface_hub")
    Hub.asked = []
    with handled_by(Hub) as url:
        yield url


def look_up(
    weights: str, cache: Path, endpoint: str, **more: str
) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from headway.models.sources.weights import find_weights\n"
        "from headway import ConfigError\n"
        "try:\n"
        "    print(find_weights(sys.argv[1], patterns=['tokenizer.json', 'model.onnx*']))\n"
        "except ConfigError as error:\n"
        "    sys.exit(str(error))\n"
    )
    ours = {key: text for key, text in os.environ.items() if not key.startswith(("HF_", "HTTP"))}
    return subprocess.run(
        [sys.executable, "-c", code, weights],
        env={**ours, "HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "NO_PROXY": "*", **more},
        cwd=cache,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_name_is_fetched_once_and_only_what_is_needed(hub: str, tmp_path: Path) -> None:
    done = look_up(NAME, tmp_path, hub)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert sorted(each.name for each in folder.iterdir()) == ["model.onnx", "tokenizer.json"]
    assert (folder / "model.onnx").read_bytes() == b"new"
    Hub.asked.clear()
    again = look_up(NAME, tmp_path, hub, HF_HUB_OFFLINE="1")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert Hub.asked == []


@pytest.mark.parametrize("revision", ["v1", "b" * 40])
def test_a_revision_is_pinned_by_its_name(hub: str, tmp_path: Path, revision: str) -> None:
    done = look_up(f"{NAME}@{revision}", tmp_path, hub)
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "model.onnx").read_bytes() == b"old"


@pytest.mark.parametrize("weights", ["acme/other", f"{NAME}@v9"])
def test_what_the_hub_has_not_is_said(hub: str, tmp_path: Path, weights: str) -> None:
    done = look_up(weights, tmp_path, hub)
    name, _, revision = weights.partition("@")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"weights: there is no folder '{name}', and the hub does not give"
    )
    assert revision in done.stderr


def test_a_hub_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    done = look_up(NAME, tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "the hub does not give acme/tiny" in done.stderr


def test_a_folder_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_weights("acme/tiny", patterns=[]) == Path("acme/tiny")


@pytest.mark.parametrize("weights", ["nowhere", "a/b/c", "/no/such/folder", "a b/c", "", "a/b@"])
def test_what_is_neither_a_folder_nor_a_name_is_refused(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"weights: .* is neither a folder nor a name on the hub"):
        find_weights(weights, patterns=[])


def test_without_the_extra_a_name_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'headway\[hub\]'"):
        find_weights("acme/tiny", patterns=[])
