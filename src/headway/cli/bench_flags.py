"""The flags of `headway bench`: each is read and checked on its own."""

import argparse

from headway.cli import simulate_flags as flags

_MANY_POINTS = 200


def rates(text: str) -> tuple[float, ...]:
    """`200`, `50,100,200` or `50:400:50`: ascending."""
    first, *rest = text.split(":")
    if not rest:
        return tuple(sorted(map(flags.positive, text.split(","))))
    if len(rest) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form FROM:TO:STEP")
    low, high, step = flags.positive(first), flags.positive(rest[0]), flags.positive(rest[1])
    if high < low:
        raise argparse.ArgumentTypeError(f"{text}: {high:g} is less than {low:g}")
    points = int((high - low) / step + 1e-9) + 1
    if points > _MANY_POINTS:
        raise argparse.ArgumentTypeError(f"{text} are {points} points, over {_MANY_POINTS}")
    return tuple(low + number * step for number in range(points))


def counts(text: str) -> tuple[int, ...]:
    return tuple(map(flags.count(10_000), text.split(",")))


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`image:1,3,224,224`."""
    name, colon, sizes = text.rpartition(":")
    if not colon or not name:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form INPUT:N,N")
    return name, tuple(map(flags.count(2**31), sizes.split(",")))


def shares(text: str) -> dict[str, float]:
    """`high=1,low=3`: how many of all, in proportion."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        if not name or name in found or not share:
            raise argparse.ArgumentTypeError(
                f"{part!r} does not have the form NAME=SHARE, once each"
            )
        found[name] = flags.positive(share)
    return found


def percent(text: str) -> float:
    """`1%` or `1`: a share."""
    value = flags.not_negative(text.removesuffix("%"))
    if value > 100:
        raise argparse.ArgumentTypeError(f"{text} is more than 100%")
    return value / 100


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not name or not (name + value).isascii() or {"\r", "\n"} & set(name + value):
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form NAME:VALUE")
    if name.lower() in ("content-length", "transfer-encoding"):
        raise argparse.ArgumentTypeError(f"{name} is what bench itself sets for each body")
    return name, value
