"""Other names of a model, over HTTP: in requests, in lists, with keys, and after a reload."""

import hashlib
import signal
import time
from pathlib import Path

from real_server import served

MODEL = """
from typing import Any, TypedDict

import headway

class Chat(TypedDict):
    messages: list[dict[str, Any]]

class Echo(headway.Model[Chat, str]):
    def predict(self, items: list[Chat]) -> list[str]:
        return [each["messages"][0]["content"] for each in items]
"""
TABLES = """
[[models]]
name = "echo"
target = "echo:Echo"
aliases = [{aliases}]
"""
KEYS = """
[[keys]]
id = "one"
hash = "sha256:{hash}"
tenant = "t"
models = ["echo"]
"""
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def write(folder: Path, *aliases: str, more: str = "") -> None:
    (folder / "echo.py").write_text(MODEL)
    names = ", ".join(f'"{each}"' for each in aliases)
    (folder / "headway.toml").write_text(TABLES.format(aliases=names) + more)


def test_a_model_answers_to_its_aliases(tmp_path: Path) -> None:
    write(tmp_path, "gpt-4o", "default")
    with served(tmp_path, "headway.toml", "--port=0", "--grpc-port=-1") as server:
        listed = server.http.get("/v1/models").json()["data"]
        assert [(each["id"], each["root"]) for each in listed] == [
            ("echo", "echo"),
            ("default", "echo"),
            ("gpt-4o", "echo"),
        ]
        one = server.http.get("/v1/models/gpt-4o").json()
        assert (one["id"], one["root"], one["ready"]) == ("gpt-4o", "echo", True)
        for name in ("echo", "gpt-4o", "default", None):  # None: the only one
            body = CHAT if name is None else {**CHAT, "model": name}
            answer = server.http.post("/v1/chat/completions", json=body)
            assert answer.json()["choices"][0]["message"]["content"] == "Hi", answer.text
        assert server.http.get("/v2/models/default/ready").status_code == 200

        write(tmp_path, "renamed")
        server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 30
        while server.http.get("/v1/models/renamed").status_code != 200:
            assert time.monotonic() < end
        body = {**CHAT, "model": "gpt-4o"}
        answer = server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 404


def test_a_key_for_a_model_is_one_for_its_aliases(tmp_path: Path) -> None:
    key = KEYS.format(hash=hashlib.sha256(b"secret").hexdigest())
    write(tmp_path, "gpt-4o", more=key)
    other = '[[models]]\nname = "other"\ntarget = "echo:Echo"\naliases = ["hidden"]\n'
    file = tmp_path / "headway.toml"
    file.write_text(file.read_text() + other)
    with served(tmp_path, "headway.toml", "--port=0", "--grpc-port=-1") as server:
        headers = {"Authorization": "Bearer secret"}
        listed = server.http.get("/v1/models", headers=headers).json()["data"]
        assert [each["id"] for each in listed] == ["echo", "gpt-4o"]
        for name, status in (("gpt-4o", 200), ("hidden", 403), ("other", 403)):
            answer = server.http.post(
                "/v1/chat/completions", json={**CHAT, "model": name}, headers=headers
            )
            assert answer.status_code == status, answer.text
