"""The files in deploy/, as far as they can be tried without systemd, Docker and a cluster."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.cli.main import _parser
from headway.cli.serve import config_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
APP = """
import headway

class Shout(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() for item in items]
"""


def instructions(kind: str) -> list[str]:
    """Of the last stage, where it matters."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    return re.findall(rf"^{kind} (.+)$", text, flags=re.MULTILINE)


def settings_of(arguments: list[str]) -> Any:
    assert arguments[0] == "serve"
    return config_of(_parser().parse_args(arguments), {}).server


# --- the container


def test_the_image_runs_as_nobody_in_particular() -> None:
    [user] = instructions("USER")
    assert all(int(each) > 0 for each in user.split(":"))


def test_what_the_image_copies_and_installs_is_there() -> None:
    sources = [
        part for line in instructions("COPY") if "--from" not in line for part in line.split()
    ]
    assert all((ROOT / each).exists() for each in sources if not each.startswith("./"))
    extras = re.findall(r"'\.\[([\w,]+)\]'", " ".join(instructions("RUN")))[0].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(project["optional-dependencies"])
    version = re.match(r"python:3\.(\d+)", instructions("FROM")[-1])
    assert version is not None
    assert int(version[1]) >= 11


def test_the_image_serves_and_asks_for_its_health_with_commands_that_exist() -> None:
    [entry], [command] = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entry) == ["headway"]
    assert settings_of(json.loads(command)).host == "0.0.0.0"
    [check] = instructions("HEALTHCHECK")
    program, *arguments = json.loads(check[check.index("[") :])
    assert program == "headway"
    assert _parser().parse_args(arguments).url == "http://127.0.0.1:8000"


def test_compose_has_a_service_that_is_shut_in() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["headway"]
    assert settings_of(service["command"]).keys_file
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()


# --- the cluster


def test_kubernetes_probes_what_there_is_and_waits_for_the_drain() -> None:
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    server = settings_of(container["args"])
    least_s = server.stop_delay_s + server.drain_s + 5
    assert pod["terminationGracePeriodSeconds"] >= least_s
    paths = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")}
    assert paths == {"/v2/health/ready"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": server.port, "grpc": server.grpc_port}
    assert service["metadata"]["name"] != "headway"
    [volume] = pod["volumes"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert Path(server.keys_file).parent == Path(mounts[volume["name"]])


# --- systemd


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    text = (DEPLOY / "headway.service").read_text()
    command = Path(sys.executable).with_name("headway")
    unit = tmp_path / "headway.service"
    unit.write_text(text.replace("/opt/headway/bin/headway", str(command)))
    done = subprocess.run(
        [analyze, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    ours = [line for line in done.stderr.splitlines() if "headway.service" in line]
    assert ours == []


def test_the_unit_waits_for_the_drain() -> None:
    text = (DEPLOY / "headway.service").read_text()
    [stop_s] = re.findall(r"^TimeoutStopSec=(\d+)$", text, flags=re.MULTILINE)
    server = settings_of(["serve"])
    assert int(stop_s) >= server.stop_delay_s + 2 * server.drain_s
    [command] = re.findall(r"^ExecStart=\S+ (.+)$", text, flags=re.MULTILINE)
    assert _parser().parse_args(command.split()).target == "/etc/headway/headway.toml"


# --- a read-only root


def test_the_server_needs_no_place_to_write(tmp_path: Path) -> None:
    """In /proc nobody can make a file, not even root."""
    (tmp_path / "shouting.py").write_text(APP)
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "serve", "shouting:Shout", "--port", "0"],
        cwd="/proc",
        env={
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HEADWAY_GRPC_PORT": "0",
            "HOME": "/proc",
            "PATH": os.environ["PATH"],
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        url = next((line.split()[1] for line in said if line.strip().startswith("HTTP")), None)
        assert url, process.stderr.read() if process.stderr else ""
        health = [sys.executable, "-m", "headway", "health", url]
        assert subprocess.run(health, capture_output=True, check=False).returncode == 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert process.returncode == 0
