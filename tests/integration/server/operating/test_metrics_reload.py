"""Metrics of models that are loaded, changed and unloaded: no series twice, none without end."""

import time
from pathlib import Path

from prometheus_client import parser
from real_server import Server, served
from repositories import write_version

BODY = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0.0]}]}


def scrape(server: Server) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    page = server.http.get("/metrics").text
    for family in parser.text_string_to_metric_families(page):
        for name, labels, value, *_ in family.samples:
            key = (name, *sorted(f"{label}={each}" for label, each in labels.items()))
            assert key not in found, f"{key} stands twice"
            found[key] = value
    return found


def change(server: Server, what: str) -> None:
    answer = server.http.post(f"/v2/repository/models/m/{what}")
    assert answer.status_code == 200, answer.text


def test_counters_go_on_over_reloads_and_old_versions_are_forgotten(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_version(root, "m", 1, 1)
    with served(
        tmp_path, str(root), "--port", "0", "--grpc-port", "-1", "--admin-without-key"
    ) as server:
        for number in range(1, 4):  # the same version, loaded again
            write_version(root, "m", 1, number)
            change(server, "load")
            assert server.http.post("/v2/models/m/infer", json=BODY).status_code == 200
            found = scrape(server)
            rows = ("nv_inference_count_total", "model=m", "version=1")
            assert found[rows] == number
            assert found["headway_model_ready", "model=m", "version=1"] == 1
        for number in range(2, 25):
            write_version(root, "m", number, number)
            change(server, "load")
            assert server.http.post("/v2/models/m/infer", json=BODY).status_code == 200
        versions = {
            label
            for key in scrape(server)
            if "model=m" in key
            for label in key
            if label.startswith("version=")
        }
        assert "version=24" in versions
        assert len(versions) <= 18
        change(server, "unload")
        give_up_at = time.monotonic() + 20  # it is drained first
        while any(key[0] == "headway_model_ready" for key in scrape(server)):
            assert time.monotonic() < give_up_at
