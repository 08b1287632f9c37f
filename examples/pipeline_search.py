"""Embed → rerank: a pipeline over two served models, each batched on its own."""

import asyncio
from typing import Any

import headway

Handle = headway.ModelHandle[Any, Any]
DOCUMENTS = ["Trains leave every ten minutes", "Buses leave on the hour", "Cats sleep all day"]


class Embed(headway.Model[str, list[float]]):
    def predict(self, items: list[str]) -> list[list[float]]:
        return [[float(item.lower().count(letter)) for letter in "aeioutrls"] for item in items]


class Rerank(headway.Model[tuple[str, str], float]):
    def predict(self, items: list[tuple[str, str]]) -> list[float]:
        words = [(set(query.lower().split()), set(text.lower().split())) for query, text in items]
        return [len(query & text) / len(query) for query, text in words]


async def search(query: str, *, embed: Handle, rerank: Handle) -> str:
    """Of the two documents that are nearest by vector, the better one by its words."""
    wanted, *vectors = await embed.many([query, *DOCUMENTS])
    near = [sum(a * b for a, b in zip(wanted, each, strict=True)) for each in vectors]
    best = sorted(range(len(DOCUMENTS)), key=near.__getitem__, reverse=True)[:2]
    scores = await rerank.many([(query, DOCUMENTS[index]) for index in best])
    return DOCUMENTS[best[scores.index(max(scores))]]


async def main() -> None:
    app = headway.asgi({"search": search, "embed": Embed, "rerank": Rerank}, warm_up=False)
    async with app.lifespan():
        print(await app.models["search"]("when do trains leave"))


asyncio.run(main())
