"""What a viewer of /dashboard costs a server that runs 10,000 batches a second.

A look at it takes the same work at any rate of batches above what is kept of a model (4,096), so a
look is measured on a server at rest, with as many batches that the page has not seen.
"""

import http.client
import json
import time
from collections.abc import Callable

from benchmarks.report import Bar, Benchmark, Report
from benchmarks.serving import Running, serving
from headway.observe.history import MOST_BATCHES

_ROWS = 256  # of a request; each is a batch of its own
_RARELY = 5  # models and workers are asked for at every fifth look
_HEADERS = {"Content-Type": "application/json"}
_MOST = 0.02  # of a core, which such a server has busy


def dashboard(quick: bool) -> Report:
    looks = 20 if quick else 200
    with serving("headway-single") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        data = [[1.0] * 16] * _ROWS
        tensor = {"name": "x", "shape": [_ROWS, 16], "datatype": "FP32", "data": data}
        body = json.dumps({"inputs": [tensor]}).encode()
        for _ in range(MOST_BATCHES // _ROWS + 1):
            _ask(connection, "POST", "/v2/models/zero/infer", body)
        kept = json.loads(_ask(connection, "GET", "/admin/explain?limit=4096&items=false"))
        assert len(kept["batches"]) == MOST_BATCHES
        first = kept["batches"][0]["number"] - 1  # all of them are new to each look
        time.sleep(1.0)
        idle_s = _spent_s(server, lambda: time.sleep(0.005), looks)
        spent_s = _spent_s(server, lambda: _look(connection, first), looks) - idle_s
        rare_s = _spent_s(server, lambda: _look_rarely(connection), looks) - idle_s
    share = (spent_s + rare_s / _RARELY) / looks  # a look a second
    return Report(
        "The live page: what a viewer costs",
        ["a look with 4,096 batches that are new to it", "ms of the server's CPU"],
        [
            ["figures and batches", f"{spent_s / looks * 1e3:.2f}"],
            [f"models and workers, every {_RARELY}th", f"{rare_s / looks * 1e3:.2f}"],
        ],
        [Bar(f"≤ {_MOST:.0%} of a core with a viewer", f"{share:.2%}", share <= _MOST)],
        ["the page asks once a second, or less often where answers take longer"],
    )


def _spent_s(server: Running, act: Callable[[], object], times: int) -> float:
    before = server.cpu_s
    for _ in range(times):
        act()
    return server.cpu_s - before


def _look(connection: http.client.HTTPConnection, since: int) -> None:
    _ask(connection, "GET", "/metrics")
    _ask(connection, "GET", f"/admin/explain?since={since}&limit=200&items=false")


def _look_rarely(connection: http.client.HTTPConnection) -> None:
    _ask(connection, "GET", "/admin/models")
    _ask(connection, "GET", "/admin/workers")


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> bytes:
    connection.request(method, path, body, _HEADERS)
    answer = connection.getresponse()
    found = answer.read()
    assert answer.status == 200, (path, answer.status, found[:200])
    return found


BENCHMARKS: dict[str, Benchmark] = {"dashboard": dashboard}
