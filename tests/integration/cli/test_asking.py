"""The commands that ask a running server: where there is none, where it is another one, where it
wants a key or TLS."""

import http.server
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from real_server import Server, served

from handler_server import handled_by
from headway.cli.main import main
from headway.server.auth.keys import hash_of

MODEL = """
def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]
"""
SECRET = "hw-a-secret-of-some-length"
NONE_THERE = "http://127.0.0.1:9"
COMMANDS = {
    "health": ["health"],
    "top": ["top", "--count", "1", "--every", "0.1"],
    "record": ["record", "--out", "new.jsonl", "--seconds", "0.1"],
    "conformance": ["conformance"],
    "slowest": ["explain"],
    "request": ["explain", "some-id"],
    "batch": ["explain", "--batch", "1"],
    "trace": ["explain", "--trace", "new.json"],
    "what-if": ["explain", "--what-if", "max_batch_size=1"],
}
every_command = pytest.mark.parametrize("name", COMMANDS)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_API_KEY", raising=False)


def ask(
    name: str, url: str, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str, str]:
    """The exit code; what was said of the figures or of the failure; nothing is left behind."""
    command = COMMANDS[name]
    code = main([command[0], url, *command[1:], "--timeout", "2", *more])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def complaint(name: str, said: tuple[int, str, str]) -> tuple[int, str]:
    """The exit code and the line that says why: `top` goes on looking, and shows it."""
    code, out, err = said
    assert code
    assert not os.listdir()
    if name == "top":
        assert "no figures: " in out
        return code, out
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("headway: ")
    return code, err


@every_command
def test_no_server(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, why = complaint(name, ask(name, NONE_THERE, capsys))
    assert (code, "no server listens there" in why) == (1, True)


@every_command
def test_a_server_that_never_answers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        code, why = complaint(name, ask(name, url, capsys, "--timeout", "0.2"))
    assert (code, "has not answered in 0.2 s" in why) == (1, True)


class WebSite(http.server.BaseHTTPRequestHandler):
    """Answers every request with a page."""

    status, kind, body = 200, "text/html", b"<html>Welcome</html>"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET


class OlderHeadway(WebSite):
    """Has none of the routes that came later."""

    status, kind, body = 404, "application/json", b'{"error":"Not Found; /docs lists the routes"}'


class SomethingElse(WebSite):
    """Answers with JSON of its own."""

    kind, body = "application/json", b"[1, 2]"


@every_command
@pytest.mark.parametrize("kind", [WebSite, OlderHeadway, SomethingElse])
def test_another_server(name: str, kind: type[WebSite], capsys: pytest.CaptureFixture[str]) -> None:
    if name == "health" and kind is SomethingElse:
        pytest.skip("the protocol wants no more than the status")
    with handled_by(kind) as url:
        _, why = complaint(name, ask(name, url, capsys))
    assert url in why
    if kind is OlderHeadway and name not in ("health", "conformance"):
        assert "an older Headway" in why


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with keys."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "shout.py").write_text(MODEL)
    (folder / "keys.toml").write_text(
        f'[[keys]]\nid = "boss"\ntenant = "boss"\nhash = "{hash_of(SECRET)}"\nrights = ["admin"]\n'
    )
    flags = ("--keys-file", "keys.toml", "--port", "0", "--grpc-port", "0")
    with served(folder, "shout.py", *flags) as running:
        yield running


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "health"])
def test_a_server_with_keys(
    name: str, locked: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, why = complaint(name, ask(name, locked.url, capsys))
    assert ("--api-key: " in why, "key" in why) == (True, True)
    assert code == (1 if name == "top" else 2)
    assert "--api-key: " in complaint(name, ask(name, locked.url, capsys, "--api-key", "wrong"))[1]
    _, _, given = ask(name, locked.url, capsys, "--api-key", SECRET)
    for each in os.listdir():
        os.remove(each)
    monkeypatch.setenv("HEADWAY_API_KEY", SECRET)
    _, _, found = ask(name, locked.url, capsys)
    assert "api-key" not in given + found


def test_health_needs_no_key(locked: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("health", locked.url, capsys) == (0, "ready\n", "")


@every_command
@pytest.mark.parametrize(
    ("url", "flags", "says"),
    [
        ("https://127.0.0.1:9", ["--ca", "nope.pem"], "--ca: nope.pem: No such file"),
        ("https://127.0.0.1:9", ["--cert", "nope.pem"], "--cert: nope.pem: No such file"),
        ("https://127.0.0.1:9", ["--ca", __file__], "no certificate in PEM"),
        ("https://127.0.0.1:9", ["--cert", __file__], "--cert: "),
        ("https://127.0.0.1:9", ["--ca", "a", "--insecure"], "one of them"),
        (NONE_THERE, ["--key", "mine"], "--key: is the private key of --cert, which is missing"),
        (NONE_THERE, ["--ca", "a.pem"], "--ca: is for https://"),
        (NONE_THERE, ["--insecure"], "--insecure: is for https://"),
        (NONE_THERE, ["--timeout", "0"], "--timeout: '0' is no number of seconds"),
        ("ftp://host", [], "'ftp://host' is not a URL like http://127.0.0.1:8000"),
        ("http://me:secret@host", [], "is not a URL like"),
        ("http://[::1", [], "http://[::1"),
        ("http://127.0.0.1:99999", [], "99999"),
    ],
)
def test_a_wrong_flag_is_named(
    name: str, url: str, flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ask(name, url, capsys, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "health"])
def test_a_wrong_key_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ask(name, NONE_THERE, capsys, "--api-key", "two\nlines")
    assert (code, "--api-key" in err) == (2, True)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server that speaks TLS, and the folder with who signed it."""
    folder = tmp_path_factory.mktemp("tls")
    (folder / "shout.py").write_text(MODEL)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    flags = ("--tls-cert", "server.pem", "--tls-key", "server.pem", "--admin-without-key")
    with served(folder, "shout.py", *flags, "--port", "0", "--grpc-port", "0") as running:
        yield running, folder / "ca.pem"


@every_command
def test_over_tls(
    name: str, encrypted: tuple[Server, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    server, authority = encrypted
    _, why = complaint(name, ask(name, server.url, capsys))
    assert "its certificate is not trusted (--ca): " in why
    _, why = complaint(name, ask(name, server.url.replace("https", "http"), capsys))
    assert "its URL is https://" in why
    for flags in (["--ca", str(authority)], ["--insecure"]):
        _, out, err = ask(name, server.url, capsys, *flags)
        assert server.url not in err
        assert "no figures" not in out
        for each in os.listdir():
            os.remove(each)


def test_conformance_over_grpc_keeps_to_the_flags_too(
    encrypted: tuple[Server, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    server, authority = encrypted
    over_grpc = ("--grpc", server.grpc)
    code, out, _ = ask("conformance", server.url, capsys, *over_grpc, "--ca", str(authority))
    assert (code, "inference_grpc.md" in out, " 0 BROKEN" in out) == (0, True, True)
    code, _, err = ask("conformance", server.url, capsys, *over_grpc, "--insecure")
    assert (code, "--insecure: gRPC" in err) == (2, True)
    code, _, err = ask("conformance", server.url, capsys, "--insecure", "--grpc", "8001")
    assert (code, "8001" in err) == (2, True)


def test_a_server_that_is_gone_breaks_no_clause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Leaves(WebSite):
        count = 0

        def do_GET(self) -> None:
            type(self).count += 1
            if self.count > 4:
                self.server.socket.close()
                self.close_connection = True
                self.connection.close()
            else:
                super().do_GET()

        do_POST = do_GET

    with handled_by(Leaves) as url:
        code, _, err = ask("conformance", url, capsys, "--model", "m")
    assert (code, err.startswith(f"headway: {url}")) == (1, True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([NONE_THERE], f"{NONE_THERE}: no server listens there"),
        ([NONE_THERE, "order-17"], f"{NONE_THERE}: no server listens there"),
        (["--slowest", "2", NONE_THERE], f"{NONE_THERE}: no server listens there"),
        (["order-17", NONE_THERE], "headway explain URL REQUEST-ID"),
        ([NONE_THERE, "order-17", "--batch", "1"], "a request is explained alone"),
        (["--url", NONE_THERE], "the server's URL is given without a flag"),
    ],
)
def test_explain_takes_the_server_as_the_others_do(
    asked: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *asked]) in (1, 2)
    assert said in capsys.readouterr().err
