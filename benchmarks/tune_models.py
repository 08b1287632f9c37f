"""Models whose batches take a known time."""

import time

import headway


def flat(values: list[float]) -> list[float]:
    time.sleep(0.005 + 0.00005 * len(values))
    return values


def linear(values: list[float]) -> list[float]:
    time.sleep(0.001 + 0.0008 * len(values))
    return values


class Length(headway.Model):
    """Padded to the longest."""

    def size(self, text: str) -> int:
        return len(text)

    def predict(self, texts: list[str]) -> list[int]:
        longest = max(map(len, texts))
        time.sleep(0.002 + 0.000004 * len(texts) * longest)
        return [len(each) for each in texts]
