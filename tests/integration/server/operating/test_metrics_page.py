"""`/metrics` of a real server after real traffic, read by Prometheus' own parsers; the documents
and the dashboard know the same names."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy
import promql_parser as promql
import pytest
import yaml
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from real_server import Server, served

from headway.core.lifecycle.scaling import TARGET_LOAD
from headway.observe import families
from headway.observe.exposition import MetricFamily

ROOT = Path(__file__).parents[4]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TOML = """
[server]
port = 0
grpc_port = 0

[[models]]
name = "double"
target = "served_models:Double"
slo_ms = 10000
tenants = { acme = 2.0 }

[[models]]
name = "root"
target = "served_models:Root"

[[models]]
name = "gate"
target = "served_models:Gate"
warm_up = false
max_queue = 1
max_batch_size = 1

[[models]]
name = "gatekeeper"
target = "served_models:Gatekeeper"
warm_up = false
max_batch_size = 1
"""


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "headway.toml").write_text(TOML)
    with served(folder, "headway.toml") as running:
        yield running


def double(server: Server, **headers: str) -> int:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 16], "data": [1.0] * 32}
    answer = server.http.post("/v2/models/double/infer", json={"inputs": [tensor]}, headers=headers)
    return answer.status_code


def scrape(server: Server) -> list[Sample]:
    answer = server.http.get("/metrics", headers={"Accept": OPENMETRICS})
    return [
        Sample(*sample[:3])
        for family in openmetrics_parser.text_string_to_metric_families(answer.text)
        for sample in family.samples
    ]


def value(server: Server, name: str, **labels: str) -> float:
    found = [
        each.value
        for each in scrape(server)
        if each.name == name and labels.items() <= each.labels.items()
    ]
    return sum(found)


def family_of(name: str) -> MetricFamily:
    found = [
        family
        for family in families.ALL
        if name in {family.name, *(f"{family.name}{end}" for end in ("_bucket", "_sum", "_count"))}
    ]
    assert len(found) == 1, name
    return found[0]


@pytest.fixture(scope="module")
def busy_server(server: Server) -> Server:
    """After traffic of every kind: good, failing, refused, late, cancelled, unknown."""
    for _ in range(3):
        assert double(server) == 200
    assert double(server, **{"Headway-Tenant": "acme", "Headway-Priority": "high"}) == 200
    for number in range(20):
        assert double(server, **{"Headway-Tenant": f"stranger-{number}"}) == 200
        assert server.http.post(f"/v1/predict/secret-{number}", json=1.0).status_code == 404
    assert server.http.post("/v1/predict/root", json=-1.0).status_code == 500
    with server.closed_gate() as wait_entered, ThreadPoolExecutor() as pool:
        running = pool.submit(server.http.post, "/v1/predict/gate", json=1.0)
        wait_entered()
        waiting = leave_in_queue(server)
        wait_for(server, "headway_queue_rows", model="gate")
        assert server.http.post("/v1/predict/gate", json=3.0).status_code == 503
        waiting.close()
        wait_for(server, "headway_items_cancelled_total", model="gate")
        server.keeper("open")
        assert running.result().status_code == 200
    return server


def leave_in_queue(server: Server) -> socket.socket:
    """A client whose request waits at the gate; to be closed before it is answered."""
    client = socket.create_connection(("127.0.0.1", server.port))
    head = "POST /v1/predict/gate HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n2.0"
    client.sendall(head.encode())
    return client


def wait_for(server: Server, name: str, **labels: str) -> None:
    """Each look is a round trip: the server has had its turn in between."""
    for _ in range(1000):
        if value(server, name, **labels):
            return
    raise AssertionError(f"{name} stays 0")


def test_both_formats_are_valid_and_say_the_same(busy_server: Server) -> None:
    plain = busy_server.http.get("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {
        sample.name
        for family in parser.text_string_to_metric_families(plain.text)
        for sample in family.samples
    }
    answer = busy_server.http.get("/metrics", headers={"Accept": OPENMETRICS})
    assert answer.headers["content-type"].startswith(OPENMETRICS)
    theirs = {sample.name for sample in scrape(busy_server)}
    # The parser of the old format gives Triton's counters an ending that they do not have.
    endless = {name for name in theirs if name.startswith("nv_") and name not in names}
    assert names == theirs - endless | {f"{name}_total" for name in endless}
    assert len(names) > 50


def test_no_sample_stands_twice_and_all_have_the_labels_they_should(busy_server: Server) -> None:
    found = scrape(busy_server)
    keys = [(each.name, *sorted(each.labels.items())) for each in found]
    assert len(keys) == len(set(keys))
    for name, labels, _ in found:
        assert set(labels) - {"le"} == set(family_of(name).labels), name


def test_all_that_is_declared_is_exported(busy_server: Server) -> None:
    exported = {family_of(each.name) for each in scrape(busy_server)}
    no_gpu_here = {each for each in families.ALL if each.labels == ("gpu_uuid",)}
    no_language_model_here = set(families.LANGUAGE)
    no_pipeline_here = {each for each in families.ALL if each.labels == ("model", "stage")}
    not_here = no_gpu_here | no_language_model_here | no_pipeline_here
    assert exported | not_here == set(families.ALL)


def test_what_clients_send_never_becomes_a_label(busy_server: Server) -> None:
    text = busy_server.http.get("/metrics").text
    assert "secret-" not in text
    assert "stranger-" not in text
    assert value(busy_server, "headway_tenant_rows_total", tenant="other") >= 40
    assert value(busy_server, "headway_tenant_rows_total", tenant="acme") == 2
    assert value(busy_server, "headway_error_answers_total", code="unknown_model") == 20


def test_times_are_told_by_class(busy_server: Server) -> None:
    for name in ("queue", "linger", "execute", "end_to_end"):
        count = f"headway_item_{name}_seconds_count"
        assert value(busy_server, count, model="double", priority="high") == 1
        assert value(busy_server, count, model="double", priority="normal") >= 23


def test_tritons_figures_are_those_of_its_statistics(busy_server: Server) -> None:
    stats = busy_server.http.get("/v2/models/double/stats").json()["model_stats"][0]
    told = stats["inference_stats"]
    for name, expected in (
        ("nv_inference_request_success", told["success"]["count"]),
        ("nv_inference_count", stats["inference_count"]),
        ("nv_inference_exec_count", stats["execution_count"]),
        ("nv_inference_request_duration_us", told["success"]["ns"] // 1000),
        ("nv_inference_queue_duration_us", told["queue"]["ns"] // 1000),
        ("nv_inference_compute_infer_duration_us", told["compute_infer"]["ns"] // 1000),
    ):
        assert value(busy_server, name, model="double", version="1") == expected
    assert told["success"]["count"] * 2 == stats["inference_count"]


@pytest.mark.parametrize(
    ("model", "reason"), [("root", "BACKEND"), ("gate", "REJECTED"), ("gate", "CANCELED")]
)
def test_failures_have_tritons_reasons(busy_server: Server, model: str, reason: str) -> None:
    wait_for(busy_server, "nv_inference_request_failure", model=model, reason=reason)
    assert value(busy_server, "nv_inference_request_failure", model=model, reason=reason) == 1


def test_the_latency_goal_is_counted(busy_server: Server) -> None:
    assert value(busy_server, "headway_slo_seconds", model="double") == 10
    assert value(busy_server, "headway_slo_items_total", outcome="in_time") >= 24
    assert value(busy_server, "headway_slo_items_total", outcome="late") == 0


def test_errors_over_grpc_are_counted_too(busy_server: Server) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    with triton.InferenceServerClient(busy_server.grpc) as client:
        tensor = triton.InferInput("x", [1, 16], "FP32")
        tensor.set_data_from_numpy(numpy.ones((1, 16), numpy.float32))
        with pytest.raises(Exception, match="no model 'absent'"):
            client.infer("absent", [tensor])
        client.infer("double", [tensor])
    errors = {"protocol": "grpc", "code": "unknown_model"}
    assert value(busy_server, "headway_error_answers_total", **errors) == 1


def test_the_process_is_told_of_as_prometheus_clients_do(busy_server: Server) -> None:
    assert value(busy_server, "process_cpu_seconds_total") > 0
    assert value(busy_server, "process_resident_memory_bytes") > 10 * 2**20
    assert value(busy_server, "process_max_fds") > value(busy_server, "process_open_fds") > 3
    assert value(busy_server, "process_start_time_seconds") > 1.7e9


def test_a_page_is_compressed_on_request_and_answers_head(busy_server: Server) -> None:
    answer = busy_server.http.get("/metrics", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert "headway_queue_rows" in answer.text
    assert busy_server.http.head("/metrics").status_code == 200


def test_metrics_may_be_off(tmp_path: Path) -> None:
    with served(
        tmp_path, "served_models:Double", "--port", "0", "--grpc-port", "-1", "--no-metrics"
    ) as server:
        assert server.http.get("/metrics").status_code == 404
        assert double(server) == 200


# ---- the load of the process


def load_of(server: Server) -> dict[str, float]:
    answer = server.http.get("/metrics/load")
    assert answer.status_code == 200
    return {
        sample.name: sample.value
        for family in parser.text_string_to_metric_families(answer.text)
        for sample in family.samples
        if not sample.labels
    }


def test_the_load_page_has_the_sums_of_all_models(busy_server: Server) -> None:
    assert double(busy_server) == 200
    load = load_of(busy_server)
    work_s = value(busy_server, "headway_work_seconds_total")
    assert load["headway_load_work_seconds_total"] >= work_s > 0
    assert load["headway_load_queued_requests"] == load["headway_load_queue_seconds"] == 0
    assert 0 <= load["headway_load_utilization"] <= 1


def test_what_waits_and_runs_is_in_the_load(busy_server: Server) -> None:
    with busy_server.closed_gate() as wait_entered, ThreadPoolExecutor() as pool:
        running = pool.submit(busy_server.http.post, "/v1/predict/gate", json=1.0)
        wait_entered()
        waiting = leave_in_queue(busy_server)
        wait_for(busy_server, "headway_queue_rows", model="gate")
        load = load_of(busy_server)
        assert load["headway_load_queued_requests"] == 1
        assert load["headway_load_running_requests"] >= 1
        waiting.close()
        busy_server.keeper("open")
        assert running.result().status_code == 200


@pytest.mark.parametrize("path", ["/v1/predict/root", "/v2/models/double/infer"])
def test_the_load_comes_with_an_answer_in_the_form_that_is_asked_for(
    server: Server, path: str
) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}
    body: Any = 4.0 if path.endswith("root") else {"inputs": [tensor]}

    def told(**headers: str) -> str | None:
        answer = server.http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.headers.get("endpoint-load-metrics")

    assert told() is None
    assert told(**{"endpoint-load-metrics-format": "carrier pigeon"}) is None
    text = told(**{"endpoint-load-metrics-format": "TEXT"})
    assert text is not None
    assert re.match(r"TEXT application_utilization=[\d.]+, named_metrics.queue_seconds=", text)
    form, _, figures = (told(**{"endpoint-load-metrics-format": "JSON"}) or "").partition(" ")
    assert form == "JSON"
    named = json.loads(figures)["named_metrics"]
    assert named["queued_requests"] in (0, 1)  # as read up to 10 ms ago: maybe this very request
    assert named["batch_seconds"] > 0
    assert named["batch_rows"] >= 1


def test_a_server_that_loads_counts_as_work_and_fewer_than_a_full_one(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\nimport headway\n\n\nclass Slow(headway.Model):\n"
        "    def load(self) -> None:\n        time.sleep(2)\n\n"
        "    def predict(self, values: list[float]) -> list[float]:\n        return values\n"
    )
    arguments = ("slow.py", "--port", "0", "--grpc-port", "-1")
    seen: list[float] = []
    began = time.monotonic()
    with loading(tmp_path, *arguments) as http:
        while http.get("/v2/health/ready").status_code != 200:
            page = http.get("/metrics/load").text
            seen.append(float(page.split("headway_load_work_seconds_total ")[-1].split()[0]))
        lasted_s = time.monotonic() - began
    assert seen == sorted(seen)
    assert 0 < seen[-1] < TARGET_LOAD * lasted_s


@contextmanager
def loading(folder: Path, *arguments: str) -> Iterator[httpx.Client]:
    """A client of a server that has not loaded its models yet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = tuple(str(port) if each == "0" else each for each in arguments)
    command = [sys.executable, "-m", "headway", "serve", *arguments]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
                while True:
                    with suppress(httpx.ConnectError):
                        http.get("/v2/health/live")
                        break
                yield http
        finally:
            process.terminate()


# ---- the documents and the dashboard


def test_the_reference_has_every_metric_with_its_kind_and_labels() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    told = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(
            r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", text, flags=re.MULTILINE
        )
    }
    assert told == {each.name: (each.kind, each.labels) for each in families.ALL}


ALARMS = ROOT / "deploy" / "prometheus" / "headway.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "headway.json"


def queries_of(dashboard: dict[str, Any]) -> list[str]:
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [target["expr"].replace("$__rate_interval", "5m") for target in targets]


def variables_of(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """The metric and the label that each list of choices comes from."""
    asked = [
        each["query"]["query"]
        for each in dashboard["templating"]["list"]
        if each["type"] == "query"
    ]
    found = [re.fullmatch(r"label_values\((\w+), (\w+)\)", each) for each in asked]
    return [(each[1], each[2]) for each in found if each is not None]


def check_query(query: Any, labels_of: dict[str, set[str]]) -> set[str]:
    """The labels that its result may have. What is asked for must be there."""
    match query:
        case promql.VectorSelector():
            known = labels_of[query.name]
            assert {each.name for each in query.matchers.matchers} <= known, query.name
            return known
        case promql.MatrixSelector():
            return check_query(query.vector_selector, labels_of)
        case promql.AggregateExpr():
            known = check_query(query.expr, labels_of)
            kept = set(query.modifier.labels) if query.modifier is not None else set()
            assert kept <= known, query.prettify()
            return kept
        case promql.BinaryExpr():
            sides = [check_query(side, labels_of) for side in (query.lhs, query.rhs)]
            return sides[0] | sides[1]
        case promql.Call():
            found = [check_query(each, labels_of) for each in query.args]
            if query.func.name == "histogram_quantile":
                assert "le" in found[1], query.prettify()
            return set().union(*found)
        case promql.NumberLiteral():
            return set()
    raise AssertionError(f"{type(query)} is not looked into")


def test_the_dashboard_is_one_that_grafana_loads() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["uid"] == "headway"
    assert dashboard["id"] is None  # so that importing makes a new one
    assert dashboard["schemaVersion"] >= 39
    assert {each["name"] for each in dashboard["templating"]["list"]} >= {"datasource", "model"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) > 10
    places = []
    for panel in dashboard["panels"]:
        assert panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        places.append(place)
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["description"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)) > 0
    for number, one in enumerate(places):
        assert not any(_overlap(one, other) for other in places[number + 1 :])


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


def exported_labels(server: Server) -> dict[str, set[str]]:
    scraped_by = {"job", "instance"}  # Prometheus adds them
    labels_of = {
        each.name: {*each.labels, *scraped_by}
        for each in families.ALL
        if each.labels == ("gpu_uuid",)
    }
    for sample in scrape(server):
        labels_of.setdefault(sample.name, set(scraped_by)).update(sample.labels)
    return labels_of


def test_every_alarm_asks_for_what_there_is(busy_server: Server) -> None:
    labels_of = exported_labels(busy_server)
    [group] = yaml.safe_load(ALARMS.read_text())["groups"]
    assert len(group["rules"]) >= 5
    for rule in group["rules"]:
        kept = check_query(promql.parse(rule["expr"]), labels_of)
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert told <= kept, rule["alert"]
        assert rule["labels"]["severity"] in {"page", "warn"}


def test_every_query_of_the_dashboard_asks_for_what_there_is(busy_server: Server) -> None:
    """Parsed as Prometheus would, held against what a server exports."""
    labels_of = exported_labels(busy_server)
    dashboard = json.loads(DASHBOARD.read_text())
    queries = queries_of(dashboard)
    assert len(queries) > 20
    for query in queries:
        check_query(promql.parse(query), labels_of)
    variables = variables_of(dashboard)
    assert len(variables) == 2
    for metric, label in variables:
        assert label in labels_of[metric]


@pytest.mark.parametrize(
    "query",
    [
        "rate(absent_total[5m])",
        'rate(a_total{modle="x"}[5m])',
        "sum by (reason) (rate(a_total[5m]))",
        "histogram_quantile(0.9, sum by (model) (rate(a_bucket[5m])))",
    ],
)
def test_a_query_for_what_is_not_there_would_be_found(query: str) -> None:
    labels_of = {"a_total": {"model"}, "a_bucket": {"model", "le"}}
    with pytest.raises((AssertionError, KeyError)):
        check_query(promql.parse(query), labels_of)
