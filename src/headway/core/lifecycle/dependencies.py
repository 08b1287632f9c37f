"""Decide whether models may call each other: a model that waits for itself would wait for ever."""

from collections.abc import Mapping, Sequence


def find_cycle(uses: Mapping[str, Sequence[str]], start: str) -> list[str] | None:
    """The names on a cycle from `start` back to itself, with both ends; None: no cycle."""
    ways, seen = [[start]], {start}
    for way in ways:  # grows meanwhile
        for used in uses.get(way[-1], ()):
            if used == start:
                return [*way, start]
            if used not in seen:
                seen.add(used)
                ways.append([*way, used])
    return None
