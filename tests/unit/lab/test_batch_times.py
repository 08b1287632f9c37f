"""What measured batch times say."""

from pathlib import Path

import pytest

from headway.core.costs import CostTable
from headway.errors import ConfigError
from headway.lab.batch_times import best_rows, draw, fitted, median_of, to_table, told

ROWS = (1, 2, 4, 8, 16, 32, 64)


def table(alpha_ms: float, beta_ms: float, sizes: tuple[int, ...] | None = None) -> CostTable:
    return CostTable(
        rows=ROWS,
        sizes=sizes,
        seconds=tuple(
            tuple((alpha_ms + beta_ms * rows * size) / 1e3 for size in sizes or (1,))
            for rows in ROWS
        ),
    )


@pytest.mark.parametrize("sizes", [None, (8, 32, 128)])
def test_a_line_is_found_again(sizes: tuple[int, ...] | None) -> None:
    line = fitted(table(5.0, 0.05, sizes))
    assert line.alpha_s == pytest.approx(5e-3)
    assert line.beta_s == pytest.approx(5e-5)
    assert line.worst_error < 1e-6


def test_larger_batches_stop_paying_where_rows_a_second_no_longer_grow() -> None:
    assert best_rows(table(0.0, 1.0), 0) == 1
    assert best_rows(table(5.0, 0.05), 0) == 64
    assert best_rows(table(1.0, 1.0), 0) == 16


def test_one_disturbed_round_is_not_believed() -> None:
    usual, disturbed = table(5.0, 0.05), table(50.0, 5.0)
    assert median_of([usual, disturbed, usual]).seconds == usual.seconds


def test_a_round_that_measured_other_cells_is_left_out() -> None:
    short = CostTable(rows=(1, 2), sizes=None, seconds=((0.1,), (0.1,)))
    assert median_of([table(5, 0.05), short, table(5, 0.05)]).rows == ROWS


def test_the_table_marks_the_best_size_and_names_every_cell() -> None:
    text = to_table(table(1.0, 1.0))
    [marked] = [line for line in text.splitlines() if "best" in line]
    assert marked.split()[0] == "16"
    assert len(text.splitlines()) == 1 + len(ROWS)
    assert "ms at size 32" in to_table(table(1.0, 0.01, (8, 32)))
    assert "max_batch_size = 16 is enough" in told(table(1.0, 1.0))


def test_a_rate_that_still_rises_at_the_largest_size_is_no_best_one() -> None:
    rising = table(5.0, 0.05)
    assert "best: of those timed" in to_table(rising)
    assert "still rises at 64 rows: --max-batch-size 128" in told(rising)


def test_it_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(table(1.0, 0.01, (8, 32)), tmp_path / "a.png", title="model")
    assert (tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(ConfigError):
        draw(table(1.0, 0.01), tmp_path / "none" / "a.png", title="model")
