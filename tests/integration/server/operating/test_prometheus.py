"""A real Prometheus, where one is installed, with the files of deploy/: it scrapes with a key, and
answers the very queries that replicas are scaled by."""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from real_server import Server, served

FOLDER = Path(__file__).parents[4] / "deploy" / "prometheus"
WAIT_S = 60.0


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Server]:
    """A server with one key, which may read metrics and nothing else."""
    made = subprocess.run(
        [
            *(sys.executable, "-m", "headway", "keys", "new", "--tenant", "prometheus", "--json"),
            *("--rights", "metrics", "--file", str(tmp_path / "keys.toml")),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    (tmp_path / "headway.key").write_text(json.loads(made.stdout)["key"])
    ports = ("--port", "0", "--grpc-port", "-1")
    with served(tmp_path, "served_models:Double", "--keys-file", "keys.toml", *ports) as server:
        yield server


def scrape_of(server: Server, folder: Path) -> Any:
    """The sample, at this server."""
    scrape = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    [job] = scrape["scrape_configs"]
    job["authorization"]["credentials_file"] = str(folder / "headway.key")
    labels = {
        "namespace": "default",
        "pod": "one",
        "app_kubernetes_io_instance": "mine",
        "serving_kserve_io_inferenceservice": "embedder",
    }
    job["static_configs"] = [{"targets": [server.address], "labels": labels}]
    scrape["rule_files"] = [str(FOLDER / "headway.rules.yml")]
    scrape["global"]["scrape_interval"] = "1s"
    return scrape


def test_the_sample_of_a_scrape_shows_its_key_as_the_server_wants_it(
    keyed: Server, tmp_path: Path
) -> None:
    [job] = scrape_of(keyed, tmp_path)["scrape_configs"]
    key = Path(job["authorization"]["credentials_file"]).read_text()
    shown = {"Authorization": f"{job['authorization']['type']} {key}"}
    assert keyed.http.get("/metrics").status_code == 401
    page = keyed.http.get("/metrics", headers=shown)
    assert page.status_code == 200
    assert "headway_queue_seconds{" in page.text  # what the scaler asks for
    assert keyed.http.post("/v1/predict/Double", json=1.0, headers=shown).status_code == 403


@pytest.mark.slow
def test_prometheus_scrapes_and_answers_the_scalers_queries(keyed: Server, tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no Prometheus here (Debian: prometheus)")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(scrape_of(keyed, tmp_path)))
    rules = yaml.safe_load((FOLDER / "adapter-values.yaml").read_text())["rules"]["external"]
    matchers = 'namespace="default",app_kubernetes_io_instance="mine"'
    queries = [each["metricsQuery"].replace("<<.LabelMatchers>>", matchers) for each in rules]
    queries += [*chart_queries(), *kserve_queries()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(program, f"--config.file={tmp_path / 'prometheus.yml'}"),
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        for query in queries:
            assert 0.0 <= only_value(port, query) < 0.5, query  # nothing waits
    finally:
        process.terminate()
        process.wait(WAIT_S)


def chart_queries() -> list[str]:
    """KEDA's, with the braces of Helm's templates filled in."""
    text = (FOLDER.parent / "helm/headway/templates/autoscaling.yaml").read_text()
    series = 'namespace="default",app_kubernetes_io_instance="mine"'
    found = re.findall(r"query: '(.+)'", text)
    assert len(found) == 2
    return [re.sub(r" \{\{- include .+? -\}\} ", series, query) for query in found]


def kserve_queries() -> list[str]:
    """Of the sample that KEDA scales."""
    text = (FOLDER.parent / "kserve" / "inferenceservices.yaml").read_text()
    scaled = next(iter(yaml.safe_load_all(text)))["spec"]["predictor"]["autoScaling"]["metrics"]
    return [each["external"]["metric"]["query"] for each in scaled]


def only_value(port: int, query: str) -> float:
    """Once it has one: scalers take several for an error."""
    give_up_at = time.monotonic() + WAIT_S
    while time.monotonic() < give_up_at:
        with suppress(httpx.HTTPError):
            answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query})
            found = answer.json()["data"]["result"]
            if found:
                [only] = found
                return float(only["value"][1])
        threading.Event().wait(0.5)
    raise AssertionError("Prometheus never has a value")
