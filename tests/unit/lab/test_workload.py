from pathlib import Path

import numpy as np
import pytest

from headway.errors import ConfigError
from headway.lab import traces, workload

SHARED_TRACES = Path(__file__).parents[4] / "shared" / "traces"


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def rate(times: workload.Times) -> float:
    return len(times) / float(times[-1])


@pytest.mark.parametrize("kind", sorted(workload.OPEN_LOOPS))
def test_every_open_loop_is_ascending_as_long_as_asked_and_repeatable(kind: str) -> None:
    draw = workload.OPEN_LOOPS[kind]
    times = draw(5_000, 300.0, rng())
    assert len(times) == 5_000
    assert times[0] >= 0
    assert np.all(np.diff(times) >= 0)
    assert np.array_equal(times, draw(5_000, 300.0, rng()))
    assert (kind == "constant") == np.array_equal(times, draw(5_000, 300.0, rng(8)))


@pytest.mark.parametrize("kind", sorted(workload.OPEN_LOOPS))
def test_every_open_loop_keeps_its_mean_rate(kind: str) -> None:
    times = workload.OPEN_LOOPS[kind](60_000, 300.0, rng())
    assert rate(times) == pytest.approx(300.0, rel=0.05)


@pytest.mark.parametrize("kind", sorted(workload.OPEN_LOOPS))
def test_one_single_arrival_is_enough(kind: str) -> None:
    assert len(workload.OPEN_LOOPS[kind](1, 300.0, rng())) == 1


def test_poisson_gaps_vary_as_an_exponential_does() -> None:
    gaps = np.diff(workload.poisson(50_000, 100.0, rng()))
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)


def test_mmpp_counts_vary_more_than_poisson_counts() -> None:
    def dispersion(times: workload.Times) -> float:
        counts, _ = np.histogram(times, np.arange(0, times[-1], 0.1))
        return float(counts.var() / counts.mean())

    assert dispersion(workload.poisson(50_000, 1_000.0, rng())) == pytest.approx(1.0, abs=0.3)
    assert dispersion(workload.mmpp(50_000, 1_000.0, rng())) > 10


def test_step_alternates_between_20_and_90_every_two_seconds() -> None:
    times = workload.step(44_000, 550.0, rng())
    counts, _ = np.histogram(times, np.arange(0, times[-1], 2.0))
    assert counts[0::2].mean() / 2 == pytest.approx(200, rel=0.05)
    assert counts[1::2].mean() / 2 == pytest.approx(900, rel=0.05)


def test_fan_out_comes_in_groups_of_eight_within_two_milliseconds() -> None:
    times = workload.fan_out(20_000, 10.0, rng())  # so rare that groups do not meet
    group_ends = np.flatnonzero(np.diff(times) > 0.002)
    assert len(times) / len(group_ends) == pytest.approx(8, rel=0.05)
    starts = np.concatenate([[0], group_ends + 1])[:-1]
    spans_s = times[group_ends] - times[starts]
    assert np.percentile(spans_s, 99) <= 0.002  # now and then two groups do meet


def test_a_varying_rate_too_low_for_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="would last"):
        workload.mmpp(1_000, 1e-9, rng())


def test_closed_loop_draws_one_think_time_for_each_request() -> None:
    loop = workload.closed_loop(8, 0.5, 10_000, rng())
    assert (loop.clients, loop.requests) == (8, 10_000)
    assert loop.think_s.mean() == pytest.approx(0.5, rel=0.05)


# ---- traces


@pytest.fixture
def azure_like(tmp_path: Path) -> Path:
    """A file of the same form as the Azure traces, generated: seven digits, not quite in order."""
    path = tmp_path / "trace.csv"
    seconds = [3.9799600, 4.0319600, 4.0781490, 9.5000001, 8.2500000]
    lines = [f"2023-11-16 18:17:{second:010.7f},{100 + i},7" for i, second in enumerate(seconds)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""]))
    return path


def test_a_trace_of_dates_starts_at_zero_in_order(azure_like: Path) -> None:
    times = traces.read_trace(azure_like)
    assert times == pytest.approx([0.0, 0.052, 0.098189, 4.27004, 5.5200401], abs=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "0.5\n0.75\n2\n",
        "seconds\n0.5\n0.75\n2\n",
        "0.5,12\n0.75,13\n2,14\n",
        "tokens,timestamp\n12,0.5\n13,0.75\n14,2\n",
        "\ufeffTimestamp\n100.5\n100.75\n102\n",
    ],
)
def test_a_trace_of_plain_seconds_is_read_with_or_without_header(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    assert traces.read_trace(path) == pytest.approx([0.0, 0.25, 1.5])


@pytest.mark.parametrize(
    "text",
    ["", "timestamp\n", "5\n", "5\n5\n", "1\nsoon\n", "timestamp,a\n1\n\n2\nx,y\n", "1\nnan\n3\n"],
)
def test_a_trace_without_times_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"trace\.csv"):
        traces.read_trace(path)


def test_a_missing_trace_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv"):
        traces.read_trace(tmp_path / "none.csv")


def test_a_trace_is_compressed_to_the_rate_asked_for(azure_like: Path) -> None:
    trace = traces.read_trace(azure_like)
    fast = traces.replay(trace, 5, 1_000.0)
    assert fast[-1] == pytest.approx(4 / 1_000.0)
    assert fast / fast[-1] == pytest.approx(trace / trace[-1])


def test_a_short_trace_is_repeated_at_the_same_rate(azure_like: Path) -> None:
    trace = traces.read_trace(azure_like)
    times = traces.replay(trace, 12)
    assert len(times) == 12
    assert np.all(np.diff(times) >= 0)
    assert times[:5] == pytest.approx(trace)
    assert times[5:10] - times[5] == pytest.approx(trace)
    assert times[5] - times[4] == pytest.approx(trace[-1] / 4)  # one mean gap


@pytest.mark.parametrize("name", ["code", "conv"])
def test_the_azure_traces_have_their_published_rate(name: str) -> None:
    path = SHARED_TRACES / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    trace = traces.read_trace(path)
    expected = {8_819: 2.6, 19_366: 5.5}
    assert traces.rate_of(trace) == pytest.approx(expected[len(trace)], rel=0.05)
