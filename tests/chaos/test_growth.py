"""Whether something grows is decided by figures alone, and growth is seen."""

from benchmarks.chaos.resources import MEASURES, Sample, trends


def samples(**slopes: float) -> list[tuple[float, Sample]]:
    flat = dict.fromkeys(MEASURES, 100.0)
    return [
        (at, {**flat, **{name: 100.0 + slope * at for name, slope in slopes.items()}})
        for at in map(float, range(0, 600, 10))
    ]


def growing(found: list[tuple[float, Sample]]) -> list[str]:
    return [trend.measure.name for trend in trends(found) if not trend.is_flat]


def test_what_stays_as_it_is_is_flat() -> None:
    assert growing(samples()) == []


def test_a_descriptor_or_a_process_lost_now_and_then_is_growth() -> None:
    assert growing(samples(server_fds=0.1, processes=0.05)) == [
        MEASURES["server_fds"].name,
        MEASURES["processes"].name,
    ]


def test_memory_that_leaks_is_growth_and_its_slope_is_told() -> None:
    found = samples(server_mib=0.1)
    assert growing(found) == [MEASURES["server_mib"].name]
    assert round(trends(found)[0].per_hour) == 360


def test_a_peak_is_no_growth() -> None:
    found = samples()
    found[40][1]["server_fds"] = 400.0
    assert growing(found) == []
