"""Models whose batches are worth a picture: one whose texts have lengths, one without."""

import time

import headway


class Embed(headway.Model[str, int]):
    def size(self, item: str) -> int:
        return len(item.split())

    def predict(self, items: list[str]) -> list[int]:
        longest = max(len(item.split()) for item in items)
        time.sleep(0.012 + 0.00004 * longest * len(items))
        return [len(item) for item in items]


class Rank(headway.Model[str, int]):
    def predict(self, items: list[str]) -> list[int]:
        time.sleep(0.015 + 0.0005 * len(items))
        return [len(item) for item in items]
