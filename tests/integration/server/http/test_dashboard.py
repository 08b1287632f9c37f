"""`/dashboard` in a real browser: what it shows is what /metrics and the last batches say."""

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from real_server import Server, served

from browser import CHROMIUM, Browser, Page, browsing
from headway.server.auth.keys import hash_of

pytestmark = pytest.mark.slow
if not CHROMIUM:
    pytest.skip("there is no Chromium here (Debian: chromium)", allow_module_level=True)

ADMIN, READER = "hw-a-secret-of-some-length", "hw-another-secret-of-length"
MODELS = """
import time
import headway

class Count(headway.Model):
    def size(self, item: str) -> int:
        return len(item)

    def predict(self, items: list[str]) -> list[int]:
        time.sleep(0.002)
        if "bad" in items:
            raise ValueError("a bad one")
        return [len(item) for item in items]
"""
TOML = """
[server]
port = {port}
grpc_port = -1
admin_without_key = true
[[models]]
name = "count"
target = "count:Count"
slo_ms = 50
workers = 2
"""
BROWSER_ERRORS = ("net::ERR_CONNECTION_REFUSED", "net::ERR_EMPTY_RESPONSE")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as running:
        yield running


def write(folder: Path, port: int = 0) -> None:
    (folder / "count.py").write_text(MODELS)
    (folder / "headway.toml").write_text(TOML.format(port=port))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("dashboard")
    write(folder)
    with served(folder, "headway.toml") as running:
        with ThreadPoolExecutor(8) as pool:
            texts = [*("word" * (n % 7) for n in range(150)), "bad", "bad"]
            list(pool.map(lambda text: running.http.post("/v1/predict/count", json=text), texts))
            late = {"Headway-Timeout-Ms": "0.001"}
            answer = running.http.post("/v1/predict/count", json="a", headers=late)
            assert answer.status_code == 504
        yield running


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    found = Page(browser, f"{server.url}/dashboard")
    found.wait_for("document.getElementById('state').textContent === 'live'")
    found.wait_for("document.querySelector('#workers tbody tr')")
    yield found
    assert found.console_errors == []
    found.run("document.getElementById('pause').click()")


def choose(page: Page, name: str, value: str) -> None:
    page.run(
        f"{{ const found = document.getElementById({name!r}); found.value = {value!r}; "
        "found.dispatchEvent(new Event('change')); }"
    )


def tiles(page: Page) -> dict[str, list[str]]:
    found: dict[str, list[str]] = page.run(
        "Object.fromEntries([...document.querySelectorAll('#tiles div')].map((each) => "
        "[each.children[0].textContent, [each.children[1].firstChild.textContent, "
        "each.querySelector('small').textContent]]))"
    )
    return found


def table(page: Page, name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = page.run(
        f"Object.fromEntries([...document.querySelectorAll('#{name} tbody tr')].map((each) => "
        "[each.children[0].textContent, "
        "[...each.children].slice(1).map((cell) => cell.textContent)]))"
    )
    return found


def sample(server: Server, name: str, **wanted: str) -> float:
    """The sum of the samples of /metrics that have these labels."""
    total = 0.0
    for line in server.http.get("/metrics").text.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found and wanted.items() <= dict(re.findall(r'(\w+)="([^"]*)"', found[1] or "")).items():
            total += float(found[2])
    return total


def test_every_figure_is_the_one_of_metrics(page: Page, server: Server) -> None:
    choose(page, "span", "Infinity")
    shown = tiles(page)
    items = int(sample(server, "headway_item_end_to_end_seconds_count"))
    assert shown["items/s"][1] == f"{items} answered"
    batches = int(sample(server, "headway_batch_rows_count"))
    assert shown["batches/s"][1] == f"{batches} batches"
    rows = sample(server, "headway_batch_rows_sum") / batches
    assert float(shown["rows in a batch"][0]) == pytest.approx(rows, rel=0.006)
    padding = sample(server, "headway_batch_padding_ratio_sum") / batches
    assert float(shown["padding"][0].removesuffix(" %")) == pytest.approx(100 * padding, rel=0.006)
    assert shown["queued rows"][0] == "0"
    assert int(shown["refused"][0]) == sample(server, "headway_items_refused_total") > 0
    assert shown["refused"][1] == f"{int(sample(server, 'headway_items_failed_total'))} failed"
    in_time = sample(server, "headway_slo_items_total", outcome="in_time")
    judged = sample(server, "headway_slo_items_total")
    assert shown["in time"][1] == f"of {int(judged)}"
    assert float(shown["in time"][0].removesuffix(" %")) == pytest.approx(
        100 * in_time / judged, rel=0.006
    )
    for reason, cells in table(page, "reasons").items():
        assert int(cells[0]) == sample(server, "headway_batch_rows_count", reason=reason)
    troubles = table(page, "troubles")
    assert int(troubles["failed"][0]) == sample(server, "headway_items_failed_total") > 0
    for name in ("reruns", "crashes"):
        family = {"reruns": "headway_batch_reruns_total", "crashes": "headway_crashes_total"}
        assert int(troubles[name][0]) == sample(server, family[name])
    refused = {name: int(cells[0]) for name, cells in troubles.items() if "refused" in name}
    assert all(
        count == sample(server, "headway_items_refused_total", reason=name.partition(": ")[2])
        for name, count in refused.items()
    )


def test_percentiles_are_those_of_the_histogram(page: Page, server: Server) -> None:
    choose(page, "span", "Infinity")
    choose(page, "model", "count 1")
    buckets = [
        (float(edge), sample(server, "headway_item_end_to_end_seconds_bucket", le=edge))
        for edge in ("0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "60.0")
    ]
    rank = 0.5 * buckets[-1][1]
    [(low, below), (high, count)] = next(
        pair for pair in itertools.pairwise(buckets) if pair[1][1] >= rank
    )
    expected_s = low + (high - low) * (rank - below) / (count - below)
    shown, unit = tiles(page)["p50"][0].split()
    assert float(shown) * {"ms": 1e-3, "µs": 1e-6}[unit] == pytest.approx(expected_s, rel=0.006)
    assert tiles(page)["p99"][1] == "SLO 50 ms"


def test_models_and_workers_are_shown(page: Page, server: Server) -> None:
    cells = table(page, "models")["count 1"]
    assert (cells[0], cells[4]) == ("ready", "50 ms")
    assert cells[-1] == "0 busy, 2 idle, 0 away"
    workers = server.http.get("/admin/workers").json()["workers"]
    shown = page.run("document.querySelectorAll('#workers tbody tr').length")
    assert shown == len(workers)
    assert "deadline_exceeded" in page.run("document.getElementById('incidents').textContent")


def test_a_batch_is_the_one_of_the_ring_buffer(page: Page, server: Server) -> None:
    page.run("document.querySelector('#timetable').nextElementSibling.nextElementSibling.open = 1")
    kept = server.http.get("/admin/explain?limit=4096").json()["batches"]
    shown: list[list[str]] = page.run(
        "[...document.querySelectorAll('#batches tbody tr')].map((each) => "
        "[...each.children].map((cell) => cell.textContent))"
    )
    for cells, batch in zip(shown, kept[:-21:-1], strict=True):
        assert cells[:4] == [str(batch["batch"]), "count 1", str(batch["worker"]), batch["reason"]]
        assert cells[4] == f"{batch['rows']} of {batch['batch_cap']}"
    page.run("document.querySelector('#batches button').click()")
    page.wait_for("document.querySelector('#batch table')")
    text = server.http.get(f"/admin/explain?batch={kept[-1]['batch']}").json()["batches"][-1]
    told = page.run("document.getElementById('batch').textContent")
    assert text["text"] in told
    request = kept[-1]["items"][0]["request"]
    page.run("document.querySelector('#batch button').click()")
    page.wait_for("document.querySelector('#batch pre')")
    told = page.run("document.querySelector('#batch pre').textContent")
    assert told.startswith(f"request {request}: ")


def test_the_timetable_is_drawn_and_the_keyboard_chooses(page: Page) -> None:
    colours = page.run(
        "{ const canvas = document.getElementById('timetable'); const data = canvas.getContext("
        "'2d').getImageData(130, 0, canvas.width - 130, 60).data; const found = new Set(); "
        "for (let n = 0; n < data.length; n += 4) if (data[n + 3]) "
        "found.add(`${data[n]},${data[n + 1]},${data[n + 2]}`); found.size }"
    )
    assert colours > 1
    page.run("document.getElementById('timetable').focus()")
    page.press("ArrowLeft", 37)
    page.press("ArrowLeft", 37)
    page.wait_for("document.querySelector('#batch table')")
    newest = page.run("timetable.shown().batches.slice(-2)[0].batch")
    assert page.run("timetable.chosen.batch") == newest


def test_sliders_show_what_the_simulator_says(page: Page, server: Server) -> None:
    page.wait_for("document.getElementById('if-model').value === 'count 1'")
    page.run("document.getElementById('if-ask').click()")
    page.wait_for("document.querySelectorAll('#if tbody tr').length === 3")
    simulated = table(page, "if")
    assert simulated["simulated, as it is"] == simulated["simulated, changed"]
    page.run(
        "{ const slider = document.getElementById('if-max_batch_size'); slider.value = 1; "
        "slider.dispatchEvent(new Event('input')); }"
    )
    assert page.run("document.querySelector('output[for=if-max_batch_size]').value") == "1"
    rows = "document.querySelector('#if tbody tr:last-child').children[4].textContent"
    page.wait_for(f"{rows} === '1'")
    asked = {"model": "count", "version": "1", "max_batch_size": 1}
    found = server.http.get("/admin/what-if", params=asked).json()
    shown, unit = table(page, "if")["as measured"][0].split()
    p50_ms = float(shown) * {"ms": 1, "µs": 1e-3}[unit]
    assert p50_ms == pytest.approx(found["measured"]["p50_ms"], rel=0.006)


def test_nothing_is_asked_while_nobody_looks(page: Page) -> None:
    asked = "performance.getEntriesByType('resource').length"
    page.run("document.getElementById('pause').click()")
    page.wait_for("!isAsking")
    before = page.run(asked)
    page.run("new Promise((done) => setTimeout(done, 1500))")
    assert page.run(asked) == before
    assert page.run("document.getElementById('state').textContent") == "paused"
    page.run("document.getElementById('pause').click()")
    page.wait_for(f"{asked} > {before}")


@pytest.mark.parametrize("path", ["", "docs", "chat", "dashboard"])
def test_pages_have_names_for_everything_and_fit_a_phone(
    browser: Browser, server: Server, path: str
) -> None:
    page = Page(browser, f"{server.url}/{path}")
    page.look_like(width=390, height=800)
    page.wait_for("document.querySelector('nav a')")
    page.run("new Promise((done) => setTimeout(done, 300))")
    assert page.unnamed() == []
    assert page.run("document.documentElement.scrollWidth") <= 390
    links = page.run("[...document.querySelectorAll('nav a')].map((each) => each.textContent)")
    assert links == ["Headway", "Chat", "Dashboard", "Routes"]
    assert page.console_errors == []


def test_it_asks_for_a_key_and_says_what_a_key_may_not(browser: Browser, tmp_path: Path) -> None:
    write(tmp_path)
    toml = tmp_path / "headway.toml"
    toml.write_text(toml.read_text().replace("admin_without_key = true", ""))
    with toml.open("a") as file:
        for key, rights in ((ADMIN, "admin"), (READER, "metrics")):
            line = f'tenant = "t"\nid = "{rights}"\nhash = "{hash_of(key)}"\nrights = ["{rights}"]'
            file.write(f"[[keys]]\n{line}\n")
    with served(tmp_path, "headway.toml") as server:
        page = Page(browser, f"{server.url}/dashboard")
        page.wait_for("!document.getElementById('door').hidden")
        enter(page, READER)
        page.wait_for("!document.getElementById('trouble').hidden")
        told = page.run("document.getElementById('trouble').textContent")
        assert told.startswith("These are the figures. Only an operator sees batches")
        assert page.run("document.querySelectorAll('#tiles div').length") > 0
        page = Page(browser, f"{server.url}/dashboard")
        page.wait_for("!document.getElementById('door').hidden")
        enter(page, "wrong")
        page.wait_for("document.getElementById('refused').textContent !== ''")
        enter(page, ADMIN)
        page.wait_for("document.querySelector('#workers tbody tr')")
        assert page.run("document.getElementById('trouble').hidden")


def enter(page: Page, key: str) -> None:
    page.run(
        f"{{ document.getElementById('key').value = {key!r}; "
        "document.getElementById('door').requestSubmit(); }"
    )


def test_it_survives_a_restart_of_the_server(browser: Browser, tmp_path: Path) -> None:
    write(tmp_path)
    state = "document.getElementById('state').textContent"
    with served(tmp_path, "headway.toml") as first:
        first.http.post("/v1/predict/count", json="a")
        page = Page(browser, f"{first.url}/dashboard")
        page.wait_for(f"{state} === 'live' && document.querySelector('#batches tbody tr')")
    page.wait_for(f"{state}.startsWith('no answer')")
    write(tmp_path, first.port)
    with served(tmp_path, "headway.toml") as second:
        page.wait_for(f"{state} === 'live'")
        choose(page, "span", "Infinity")
        assert tiles(page)["items/s"][1] == "0 answered"
        second.http.post("/v1/predict/count", json="a")
        page.wait_for("timetable.batches.length === 1")
        shown: Any = page.run("timetable.batches[0].batch")
        assert shown == 1
    others = [each for each in page.console_errors if not any(e in each for e in BROWSER_ERRORS)]
    assert others == []
