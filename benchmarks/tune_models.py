"""Models whose batches take a known time."""

import time


def flat(values: list[float]) -> list[float]:
    time.sleep(0.005 + 0.00005 * len(values))
    return values


def linear(values: list[float]) -> list[float]:
    time.sleep(0.001 + 0.0008 * len(values))
    return values
