"""Which batch sizes to time at warm-up, and in which order.

Batch time is rarely a line. Hardware computes rows in tiles, so one row more than a power of two
may take as long as the next power, and the best size need not be a power of two. A table of powers
alone would miss both.
"""

from collections.abc import Mapping

_REFINEMENTS = 4  # sizes timed around the best one, at most
_FINE = 16  # gaps beside the best size are halved down to the size divided by this


def probe_rows(max_rows: int, *, coarse: bool = False) -> list[int]:
    """The batch sizes to time.

    They are powers of two, sizes half-way between them, one row more than each, and the largest.
    `coarse`: powers of two and the largest only, because each is timed at many item sizes.
    """
    rows = {max_rows}
    power = 1
    while power < max_rows:
        rows.add(power)
        if not coarse:
            rows |= {power + 1, power + power // 2, power + power // 2 + 1}
        power *= 2
    return sorted(each for each in rows if each <= max_rows)


def probe_order(max_rows: int, *, coarse: bool = False) -> list[int]:
    """The same sizes, powers of two first: a warm-up that is cut short covers the whole range."""
    powers = probe_rows(max_rows, coarse=True)
    more = [] if coarse else probe_rows(max_rows)
    return powers + [rows for rows in more if rows not in powers]


def next_probe(seconds: Mapping[int, float], max_rows: int) -> int | None:
    """The size to time next, given those timed so far. None: enough is known.

    The sizes of `probe_order` come first. Then the wider gap beside the best size is halved until
    both gaps are narrow.
    """
    for rows in probe_order(max_rows):
        if rows not in seconds:
            return rows
    if len(seconds) >= len(probe_rows(max_rows)) + _REFINEMENTS:
        return None
    timed = sorted(seconds)
    best = max(timed, key=lambda rows: (rows / seconds[rows], rows))
    at = timed.index(best)
    around = [(low, best) for low in timed[max(0, at - 1) : at]]
    around += [(best, high) for high in timed[at + 1 : at + 2]]
    low, high = max(around, key=lambda gap: gap[1] - gap[0], default=(0, 0))
    middle = (low + high) // 2
    return middle if high - low > max(1, best // _FINE) and middle not in seconds else None
