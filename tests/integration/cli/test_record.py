"""`headway record` beside a real server, and what others read of it."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from real_server import Server, served

from headway.cli.main import main


def test_traffic_is_recorded_and_simulated(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "traffic.jsonl"
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.wait(0.02):
            server.http.post(
                "/v1/predict/upper", json="a secret", headers={"Headway-Tenant": "acme"}
            ).raise_for_status()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        command = ["record", server.url, "--seconds", "1.5", "--model", "upper", "--out", str(out)]
        assert main(command) == 0
    finally:
        is_over.set()
        asking.join()
    text = out.read_text()
    assert "secret" not in text
    assert "acme" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) > 5
    assert {line["tenant"] for line in lines} == {"t1"}
    assert f"{len(lines)} requests in {out}" in capsys.readouterr().out
    simulate = ["simulate", "--arrivals", f"trace:{out}@50", "--latency", "5,0.05"]
    assert main([*simulate, "--requests", "200", "--policy", "auto"]) == 0
    load = ["--rate", "50", "--arrivals", f"trace:{out}", "--seconds", "0.5", "--data", '"a"']
    assert main(["bench", server.url, "--model", "upper", *load]) in (0, 3)


def test_what_cannot_be_recorded_is_said(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").write_text("")
    for url, out, code, said in [
        (server.url, "there", 2, "File exists"),
        (server.url, "none/a.jsonl", 2, "No such file or directory"),
        (f"{server.url}/v2", "new", 2, "has no /admin/explain"),
        ("http://127.0.0.1:9", "new", 1, "no server listens there"),
        (server.url, "new", 1, "no request came, and nothing is written"),
    ]:
        assert main(["record", url, "--seconds", "0.1", "--out", str(tmp_path / out)]) == code
        assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_outlives_its_server_and_signals(tmp_path: Path, number: int) -> None:
    (tmp_path / "shout.py").write_text(
        "def shout(texts: list[str]) -> list[str]:\n    return texts\n"
    )
    flags = ("--port", "0", "--grpc-port", "-1", "--admin-without-key")
    with served(tmp_path, "shout.py", *flags) as server:
        recordings = [
            subprocess.Popen(
                [sys.executable, "-m", "headway", "record", server.url, "--out", tmp_path / name],
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in ("interrupted", "left")
        ]
        while server.http.get("/admin/explain").json()["next"] < 40 or not all(
            (tmp_path / name).exists() for name in ("interrupted", "left")
        ):
            server.http.post("/v1/predict/shout", json="a")
        end = time.monotonic() + 3  # until both have seen them
        while time.monotonic() < end:
            server.http.post("/v1/predict/shout", json="a")
        recordings[0].send_signal(number)
        _, said = recordings[0].communicate(timeout=30)
        assert (recordings[0].returncode, said.strip()) == (0, "")
    _, said = recordings[1].communicate(timeout=30)
    assert (recordings[1].returncode, said.startswith("headway: http")) == (1, True)
    for name in ("interrupted", "left"):
        assert len((tmp_path / name).read_text().splitlines()) > 10
