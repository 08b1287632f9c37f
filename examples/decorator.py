"""A function over a list becomes a function over one value. Calls made together run together."""

import asyncio

import headway

batches: list[int] = []


@headway.batched(max_batch_size=32)
def embed(texts: list[str]) -> list[list[float]]:
    batches.append(len(texts))  # your model is called here, with many texts at once
    return [[float(len(text)), float(text.count("e"))] for text in texts]


async def main() -> None:
    print("one:", await embed("hello"))
    vectors = await asyncio.gather(*(embed(f"text number {n}") for n in range(100)))
    print(f"{len(vectors)} callers at once, answered from batches of {batches[1:]}")
    print("several in one call:", await embed.many(["a", "bee", "see"]))


if __name__ == "__main__":
    asyncio.run(main())
    print("from plain code, in any thread:", embed.call("tree"))
