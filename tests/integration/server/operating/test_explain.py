"""`GET /admin/explain` of a real server: the last batches and what went wrong."""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from real_server import Server


def page(server: Server, **asked: Any) -> Any:
    answer = server.http.get("/admin/explain", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_batch_is_explained(server: Server) -> None:
    since = page(server)["next"]
    before = time.time()
    assert server.http.post("/v1/predict/root", json=9.0).json() == 3.0
    found = page(server, since=since)
    [batch] = found["batches"]
    assert (batch["model"], batch["version"], batch["rows"], batch["count"]) == ("root", "1", 1, 1)
    assert (batch["lost"], batch["failed"], batch["reruns"]) == (None, 0, 0)
    assert batch["reason"] in ("idle", "everyone", "linger")
    [item] = batch["items"]
    moments = [
        *(before, item["arrived_at"], batch["fired_at"]),
        *(batch["finished_at"], batch["answered_at"], found["now"]),
    ]
    assert moments == sorted(moments)
    waited_ms = (batch["fired_at"] - item["arrived_at"]) * 1e3
    assert math.isclose(item["queued_ms"] + item["lingered_ms"], waited_ms, abs_tol=0.01)
    assert (item["priority"], item["tenant"], item["deadline_at"]) == ("normal", "", None)
    assert (found["left_out"], found["has_gap"], found["incidents"]) == (0, False, [])


def test_a_reader_goes_on_where_it_was(server: Server) -> None:
    since = page(server)["next"]
    for number in range(4):
        server.http.post("/v1/predict/root", json=float(number))
    first = page(server, since=since, limit=3, items=False)
    assert [batch["items"] for batch in first["batches"]] == [None] * 3
    assert first["left_out"] == 1
    assert page(server, since=first["next"])["batches"] == []
    server.http.post("/v1/predict/upper", json="a")
    assert page(server, since=first["next"], model="root")["batches"] == []
    assert len(page(server, since=first["next"], model="upper")["batches"]) == 1


def test_items_that_share_a_batch_are_in_it_and_a_full_queue_is_an_incident(
    server: Server,
) -> None:
    since = page(server)["next"]
    with ThreadPoolExecutor(3) as pool, server.closed_gate() as wait_running:
        ask: Callable[[], Any] = lambda: server.http.post("/v1/predict/gate", json=1)  # noqa: E731
        running = pool.submit(ask)
        wait_running()
        others = [pool.submit(ask) for _ in range(2)]  # one is queued, one refused
        while not [each for each in others if each.done()]:
            time.sleep(0.01)
        found = page(server, since=since, model="gate")
        assert found["batches"] == []
    [incident] = found["incidents"]
    assert (incident["kind"], incident["model"]) == ("queue_full", "gate")
    assert "full" in incident["message"]
    statuses = sorted(each.result().status_code for each in (running, *others))
    assert statuses == [200, 200, 503]
    first, second = page(server, since=since, model="gate")["batches"]
    [item] = second["items"]
    assert item["queued_ms"] > 0.9 * (first["finished_at"] - item["arrived_at"]) * 1e3


def test_a_wrong_query_is_refused_by_name(server: Server) -> None:
    for query, says in [
        ({"sinse": "1"}, "sinse"),
        ({"since": "yesterday"}, "since"),
        ({"limit": "100000"}, "`limit` is 0 to"),
        ({"since": "-1"}, "`since` is 0 or more"),
    ]:
        answer = server.http.get("/admin/explain", params=query)
        assert answer.status_code == 400
        assert says in answer.text
