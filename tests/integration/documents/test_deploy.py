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

import promql_parser as promql
import pytest
import yaml

from headway.cli.main import _parser, main
from headway.cli.serve import config_of
from headway.observe import families
from headway.observe.exposition import MetricFamily

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
METRICS = ROOT / "docs" / "reference" / "metrics.md"
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
    assert '".[${EXTRAS}]"' in " ".join(instructions("RUN"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(arguments()["EXTRAS"].split(",")) <= set(project["optional-dependencies"])
    assert {each.split()[0] for each in instructions("FROM")} == {"python:${PYTHON}-slim"}
    assert int(arguments()["PYTHON"].removeprefix("3.")) >= 11


def test_one_file_builds_for_gpus_too(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    given = dict(re.findall(r"--build-arg (\w+)=(\"[^\"]+\"|\S+)", text))
    assert set(given) <= set(arguments())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(given["EXTRAS"].split(",")) <= set(project["optional-dependencies"])
    [install] = [each for each in instructions("RUN") if "apt-get" in each]
    said = tmp_path / "said"
    for name in ("apt-get", "rm"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$0 $@" >> {said}\n')
        (tmp_path / name).chmod(0o755)
    for packages in ("", given["PACKAGES"].strip('"')):
        said.write_text("")
        path = f"{tmp_path}:{os.environ['PATH']}"
        subprocess.run(["sh", "-c", install], env={"PACKAGES": packages, "PATH": path}, check=True)
        installed = re.findall(r"apt-get install .*--no-install-recommends (.+)", said.read_text())
        assert installed == ([packages] if packages else [])


def arguments() -> dict[str, str]:
    """Of a build, and their defaults."""
    found = (each.partition("=") for each in instructions("ARG"))
    return {name: value.strip('"') for name, _, value in found}


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


def test_compose_runs_as_whoever_can_read_the_keys(tmp_path: Path) -> None:
    """`headway keys` writes a file that is its owner's alone, and Compose mounts it as it is."""
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["headway"]
    assert service["user"] == "${HEADWAY_UID:-1000}:${HEADWAY_GID:-1000}"
    keys = tmp_path / "keys.toml"
    assert main(["keys", "new", "--tenant", "acme", "--file", str(keys)]) == 0
    assert keys.stat().st_mode & 0o777 == 0o600


def test_an_image_of_ones_own_takes_ten_lines(tmp_path: Path) -> None:
    lines = (DEPLOY / "Dockerfile.model").read_text().splitlines()
    code = [line for line in lines if not line.startswith("#")]
    assert len(code) <= 10
    assert code[0] == "FROM headway"  # the name that deploy/Dockerfile says
    assert "-t headway ." in (DEPLOY / "Dockerfile").read_text()
    users = [line for line in code if line.startswith("USER")]
    assert users[-1] == f"USER {instructions('USER')[0]}"
    [command] = [line.removeprefix("CMD ") for line in code if line.startswith("CMD")]
    arguments = json.loads(command)
    assert settings_of(arguments).host == "0.0.0.0"
    assert _parser().parse_args(arguments).target == "app.py:Model"


# --- the cluster


def test_kubernetes_pulls_the_image_that_is_built() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    deployment, _ = yaml.safe_load_all(text)
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert f"docker build -f deploy/Dockerfile -t {container['image']} ." in text
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert ":" in container["image"]


def test_replicas_follow_the_load_and_the_queued_seconds() -> None:
    scaler = yaml.safe_load((DEPLOY / "autoscaling.yaml").read_text())
    deployment, _ = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaler["spec"]["minReplicas"] == deployment["spec"]["replicas"]
    asked = [metric["external"]["metric"]["name"] for metric in scaler["spec"]["metrics"]]
    assert asked == [rule["name"]["as"] for rule in rules()]
    known = {family.name for family in vars(families).values() if isinstance(family, MetricFamily)}
    known |= set(re.findall(r"headway_load_\w+", METRICS.read_text()))
    for rule in rules():
        parsed = promql.parse(query_of(rule))
        assert str(parsed.op) == "sum"
        assert set(re.findall(r"headway_\w+", query_of(rule))) <= known


def rules() -> Any:
    """prometheus-adapter's."""
    values = yaml.safe_load((DEPLOY / "prometheus" / "adapter-values.yaml").read_text())
    return values["rules"]["external"]


def query_of(found: Any, matchers: str = 'namespace="default"') -> str:
    """As the adapter asks it."""
    query: str = found["metricsQuery"].replace("<<.LabelMatchers>>", matchers)
    return query


def test_the_scrape_shows_a_key_that_may_read_metrics() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    [job] = scrape["scrape_configs"]
    assert job["authorization"]["type"] == "Bearer"
    [target] = job["static_configs"][0]["targets"]
    _, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    assert target == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert all((DEPLOY / "prometheus" / each).exists() for each in scrape["rule_files"])


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
