"""`headway.Model`: loading, tokenising per caller, sizes and finishing in one class."""

import asyncio

import headway


class Sentiment(headway.Model[list[str], float]):
    def setup(self) -> None:  # light: wherever the model is
        self.labels = {True: "positive", False: "negative"}

    def load(self) -> None:  # heavy: where it computes, before the first call
        self.weights = {"good": 1.0, "great": 2.0, "bad": -1.5}

    def prepare(self, raw: str) -> list[str]:  # each caller's text becomes an item
        return raw.lower().split()

    def size(self, item: list[str]) -> int:  # what it costs beyond its row: tokens
        return len(item)

    def predict(self, items: list[list[str]]) -> list[float]:  # the batch
        print(f"predict() gets {len(items)} texts with {[len(item) for item in items]} tokens")
        return [sum(self.weights.get(token, 0.0) for token in item) for item in items]

    def finish(self, result: float) -> str:  # each result becomes an answer
        return f"{self.labels[result >= 0]} ({result:+.1f})"


async def main() -> None:
    texts = ["A good film", "Bad , very bad", "Great", "so great that it is good"]
    async with headway.Batcher(Sentiment(), max_batch_cost=512) as batcher:
        for text, answer in zip(texts, await batcher.many(texts), strict=True):
            print(f"{text!r}: {answer}")


if __name__ == "__main__":
    asyncio.run(main())
