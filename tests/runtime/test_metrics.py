"""Metrics of batchers in one's own process, on virtual time."""

import asyncio
import gc
from typing import Any

import pytest
from prometheus_client import parser

import headway
from headway.observe import families
from headway.testing import FakeModel


def samples(metrics: headway.Metrics, **wanted: str) -> dict[str, float]:
    """Name to value, of all samples with these labels (summed over the rest)."""
    found: dict[str, float] = {}
    for family in parser.text_string_to_metric_families(metrics.text()):
        for name, labels, value, *_ in family.samples:
            if wanted.items() <= labels.items() and "le" not in labels:
                found[name] = found.get(name, 0) + value
    return found


async def test_a_batch_is_recorded_with_the_time_of_every_item() -> None:
    metrics = headway.Metrics()
    async with headway.Batcher(FakeModel(cost_s=0.010), name="m") as batcher:
        metrics.watch(batcher)
        await asyncio.gather(*(batcher.submit(n) for n in range(3)))
        found = samples(metrics, model="m", version="1")
    assert found["headway_item_end_to_end_seconds_count"] == 3
    assert found["headway_item_end_to_end_seconds_sum"] == pytest.approx(0.030)
    assert found["headway_item_execute_seconds_sum"] == pytest.approx(0.030)
    assert found["headway_batch_rows_count"] == 1
    assert found["headway_batch_rows_sum"] == 3


async def test_what_waits_and_who_works_is_told_as_it_is_now() -> None:
    metrics = headway.Metrics()
    model, costs = FakeModel(cost_s=0.010), headway.CostTable((1,), None, ((0.010,),))
    async with headway.Batcher(model, name="m", max_batch_size=1, costs=costs) as batcher:
        metrics.watch(batcher)
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
        await asyncio.sleep(0.004)
        found = samples(metrics, model="m")
        assert found["headway_queue_rows"] == 2
        assert found["headway_queue_seconds"] == pytest.approx(0.020)
        assert found["nv_inference_pending_request_count"] == 2
        assert found["headway_oldest_batch_seconds"] == pytest.approx(0.004)
        assert found["headway_model_ready"] == 1
        assert samples(metrics, state="busy")["headway_workers"] == 1
        assert samples(metrics, state="idle")["headway_workers"] == 0
        await asyncio.gather(*calls)


async def test_a_decorated_function_is_watched_as_it_is() -> None:
    metrics = headway.Metrics()

    @headway.batched
    async def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    metrics.watch(double)
    assert samples(metrics, model="double")["headway_model_ready"] == 0  # not opened yet
    assert await double(4) == 8
    assert samples(metrics, model="double")["headway_item_end_to_end_seconds_count"] == 1
    await double.close()


async def test_two_of_one_name_are_summed_and_versions_told_apart() -> None:
    metrics = headway.Metrics()
    async with (
        headway.Batcher(FakeModel(), name="m") as one,
        headway.Batcher(FakeModel(), name="m") as two,
        headway.Batcher(FakeModel(), name="m") as other,
    ):
        metrics.watch(one)
        metrics.watch(two)
        metrics.watch(other, version="2")
        for batcher in (one, two, other):
            await batcher.submit(1)
        assert samples(metrics, version="1")["headway_batch_rows_sum"] == 2
        assert samples(metrics, version="1", state="idle")["headway_workers"] == 2
        assert samples(metrics, version="2")["headway_batch_rows_sum"] == 1


async def test_a_version_that_closes_keeps_its_sums_and_goes_on_when_it_comes_back() -> None:
    metrics = headway.Metrics()
    for number in (1, 2):
        async with headway.Batcher(FakeModel(), name="m") as batcher:
            metrics.watch(batcher)
            await batcher.submit(1)
            assert samples(metrics, model="m")["headway_model_ready"] == 1
        found = samples(metrics, model="m")
        assert found["headway_batch_rows_sum"] == number
        assert "headway_model_ready" not in found
        assert "headway_queue_rows" not in found


async def test_versions_that_come_and_go_do_not_pile_up() -> None:
    metrics = headway.Metrics()
    for number in range(100):
        async with headway.Batcher(FakeModel(), name="m") as batcher:
            metrics.watch(batcher, version=str(number))
            await batcher.submit(1)
    versions = {
        sample.labels["version"]
        for family in parser.text_string_to_metric_families(metrics.text())
        for sample in family.samples
        if "version" in sample.labels
    }
    assert versions == {str(number) for number in range(84, 100)}


async def test_a_batcher_that_nobody_has_any_more_is_let_go() -> None:
    metrics = headway.Metrics()

    @headway.batched
    async def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    metrics.watch(double)
    await double(1)
    del double
    gc.collect()
    found = samples(metrics, model="double")
    assert "headway_queue_rows" not in found
    assert found["headway_batch_rows_sum"] == 1


class Requests:
    """A server's count, as far as metrics ask."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self.successes = 0

    def as_triton(self, name: str, version: str) -> dict[str, Any]:
        names = ("success", "queue", "compute_input", "compute_infer", "compute_output")
        return {
            "inference_count": self.successes,
            "execution_count": self.successes,
            "inference_stats": {
                each: {"count": self.successes, "ns": 2500 * self.successes} for each in names
            },
        }


async def test_requests_are_summed_over_every_load_and_told_to_the_last() -> None:
    metrics = headway.Metrics()
    for number in range(1, 4):
        requests = Requests()
        async with headway.Batcher(FakeModel(), name="m") as batcher:
            metrics.watch(batcher, requests=requests)
            requests.successes = 2
            assert samples(metrics)["nv_inference_count_total"] == 2 * number
        requests.failures["REJECTED"] = 1  # whoever was waiting when it closed
        found = samples(metrics)
        assert found["nv_inference_request_failure_total"] == number
        assert found["nv_inference_request_duration_us_total"] == 5 * number


async def test_refusals_and_early_leavers_are_counted() -> None:
    metrics = headway.Metrics()
    async with headway.Batcher(
        FakeModel(cost_s=0.010), name="m", max_queue=1, max_batch_size=1
    ) as batcher:
        metrics.watch(batcher)
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(2)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, headway.QueueFull) for each in results) == 1
        leaver = asyncio.create_task(batcher.submit(3))
        await asyncio.sleep(0.001)
        leaver.cancel()
        await asyncio.wait([leaver])
    assert samples(metrics, reason="queue_full")["headway_items_refused_total"] == 1
    assert samples(metrics, started="true")["headway_items_cancelled_total"] == 1


async def test_a_crash_is_seen() -> None:
    metrics = headway.Metrics()
    batcher: headway.Batcher[int, int] = headway.Batcher(FakeModel(), name="m")
    metrics.watch(batcher)
    await batcher.__aenter__()
    batcher._shell.crashed(RuntimeError("a bug of ours"))
    found = samples(metrics, model="m")
    assert (found["headway_crashes_total"], found["headway_model_ready"]) == (1, 0)
    await batcher.close()


@pytest.mark.parametrize("accept", [b"", b"application/openmetrics-text; version=1.0.0"])
async def test_it_can_be_mounted_in_any_asgi_application(accept: bytes) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "headers": [(b"accept", accept)]}
    await headway.Metrics()(scope, receive, send)
    start, body = sent
    headers = dict(start["headers"])
    assert start["status"] == 200
    assert int(headers[b"content-length"]) == len(body["body"])
    assert (b"openmetrics" in headers[b"content-type"]) == bool(accept)
    assert body["body"].endswith(b"# EOF\n") == bool(accept)


def test_every_family_has_a_name_of_its_own_and_a_line_of_help() -> None:
    names = [family.name for family in families.ALL]
    assert len(names) == len(set(names)) > 30
    assert all(family.help.endswith(".") for family in families.ALL)
