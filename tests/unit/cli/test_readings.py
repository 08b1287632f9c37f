"""Counters as rates, buckets as percentiles."""

import pytest

from headway.cli.readings import LATENCY, read, spans_of

PAGE = """
# HELP headway_item_end_to_end_seconds From queued to answered.
process_start_time_seconds {start}
headway_load_utilization 0.5
headway_item_end_to_end_seconds_bucket{{model="a\\"b",version="1",priority="high",le="0.1"}} {few}
headway_item_end_to_end_seconds_bucket{{model="a\\"b",version="1",priority="high",le="0.2"}} {all_}
headway_item_end_to_end_seconds_bucket{{model="a\\"b",version="1",priority="high",le="+Inf"}} {all_}
headway_item_end_to_end_seconds_count{{model="a\\"b",version="1",priority="high"}} {all_}
headway_item_end_to_end_seconds_count{{model="a\\"b",version="1",priority="low"}} 2
headway_batch_rows_count{{model="a\\"b",version="1",reason="idle"}} {all_}
other_metric 5
"""


def page(start: float = 1.0, few: int = 0, all_: int = 0) -> str:
    return PAGE.format(start=start, few=few, all_=all_)


def test_rates_and_percentiles_are_of_what_happened_in_between() -> None:
    before, now = read(page(few=5, all_=10), 100.0), read(page(few=6, all_=14), 102.0)
    [(name, span)] = spans_of(now, before).items()
    assert name == 'a\\"b 1'
    assert span.rate(f"{LATENCY}_count") == 2
    assert span.quantile(0.25, LATENCY) == pytest.approx(0.1)
    assert span.quantile(0.625, LATENCY) == pytest.approx(0.15)
    assert span.divided("headway_batch_rows_count") == {"idle": 4}
    assert span.gauge("headway_slo_seconds") is None
    assert "other_metric" not in now.server


def test_a_server_that_was_started_again_counts_from_nothing() -> None:
    before, now = read(page(few=5, all_=10), 100.0), read(page(start=2, few=1, all_=3), 101.0)
    [span] = spans_of(now, before).values()
    assert span.count("headway_batch_rows_count|idle") == 3


def test_nothing_has_no_percentile() -> None:
    reading = read(page(), 1.0)
    [span] = spans_of(reading, reading).values()
    assert span.quantile(0.5, LATENCY) is None
    assert span.mean(LATENCY) is None
