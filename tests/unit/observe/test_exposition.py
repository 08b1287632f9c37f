"""The page is what Prometheus' own parsers read, in both formats."""

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from headway.observe.exposition import (
    Exposition,
    MetricFamily,
    histogram_starts,
    labels,
    wants_openmetrics,
)
from headway.observe.histogram import Histogram, bounds

SEEN = MetricFamily("seen_total", "counter", "Things seen.", ("who",))
LEVEL = MetricFamily("level", "gauge", "How high.")
SIZE = MetricFamily("size", "histogram", "How large.", ("who",))
TRITON = MetricFamily("nv_count", "counter", "A counter without its ending.", ("who",))


def page() -> Exposition:
    made = Exposition()
    made.add(SEEN, labels(("who",), ('a "b"\n\\c',)), 3)
    made.add(LEVEL, "", 1.5e-7)
    histogram = Histogram(bounds(1, 2))
    for value in (1, 2, 2, 3):
        histogram.add(value)
    made.add_histogram(SIZE, histogram_starts(SIZE, 'who="a"', histogram.bounds), histogram)
    made.add(TRITON, 'who="a"', 10**17)
    return made


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_sample_is_read_back(openmetrics: bool) -> None:
    text = page().text(openmetrics=openmetrics)
    parse = (openmetrics_parser if openmetrics else parser).text_string_to_metric_families
    # This parser of the old format gives every counter the ending; Prometheus does not.
    triton = "nv_count" if openmetrics else "nv_count_total"
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(text)
        for sample in family.samples
    }
    assert found == {
        ("seen_total", 'a "b"\n\\c'): 3,
        ("level",): 1.5e-7,
        ("size_bucket", "a", "1.0"): 1,
        ("size_bucket", "a", "2.0"): 3,
        ("size_bucket", "a", "+Inf"): 4,
        ("size_sum", "a"): 8,
        ("size_count", "a"): 4,
        (triton, "a"): 10**17,
    }


def test_kinds_are_told_as_each_format_has_them() -> None:
    text = page().text()
    assert "# TYPE seen_total counter" in text
    assert "# TYPE nv_count counter" in text
    assert "# EOF" not in text
    text = page().text(openmetrics=True)
    assert "# TYPE seen counter" in text
    assert "# TYPE nv_count unknown" in text  # there, a counter's samples end in _total
    assert text.endswith("# EOF\n")


def test_whole_numbers_have_no_exponent() -> None:
    assert 'nv_count{who="a"} 100000000000000000\n' in page().text()


def test_openmetrics_is_for_who_asks_for_it() -> None:
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
    assert wants_openmetrics(prometheus)
    assert not wants_openmetrics("text/plain, */*")
    assert not wants_openmetrics("")
