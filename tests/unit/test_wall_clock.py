"""No test asserts on how long something took by the clock: it would fail on a busy machine."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# To give up at a time (`assert time.monotonic() < give_up_at`) is patience, not a measurement.
MEASURED = re.compile(
    r"assert [^\n]*((monotonic|perf_counter|process_time|thread_time|time\.time)(_ns)?\(\) - |"
    r"\.elapsed\b)"
)


def measurements(source: str) -> list[str]:
    return [match[0] for match in MEASURED.finditer(source)]


def test_no_test_asserts_on_wall_clock_time() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): lines
        for path in TESTS.rglob("*.py")
        if path != Path(__file__) and (lines := measurements(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("assert time.monotonic() - started < 1.0", True),
        ("assert 0.1 < perf_counter() - before", True),
        ("assert answer.elapsed.total_seconds() < 0.5", True),
        ("assert time.monotonic() < give_up_at", False),
    ],
)
def test_such_an_assertion_is_found(line: str, is_found: bool) -> None:
    assert bool(measurements(line)) is is_found
