"""Decide whether models may call each other: a model that waits for itself would wait for ever."""

from collections.abc import Mapping, Sequence


def find_cycle(uses: Mapping[str, Sequence[str]], start: str) -> list[str] | None:
    """The names on a cycle from `start` back to itself, with both ends; None: no cycle."""
    way = [start]
    rest = [iter(uses.get(start, ()))]
    seen = {start}
    while rest:
        used = next(rest[-1], None)
        if used == start:
            return [*way, start]
        if used is None:
            rest.pop()
            way.pop()
        elif used not in seen:
            seen.add(used)
            way.append(used)
            rest.append(iter(uses.get(used, ())))
    return None
