"""A model with many answers per item: callers share each step, and end on their own."""

import asyncio
from collections.abc import Iterator, Sequence

import headway


class Countdown(headway.Model[int, int]):
    def stream(self, items: list[int]) -> Iterator[Sequence[object]]:
        """Each step yields one entry per item: a chunk, None for nothing yet, or END."""
        left = list(items)
        while any(n >= 0 for n in left):
            yield [n if n > 0 else headway.END for n in left]
            left = [n - 1 for n in left]


async def read(batcher: headway.Batcher[int, int], start: int) -> None:
    chunks = [chunk async for chunk in batcher.stream(start)]
    print(f"countdown from {start}: {chunks}")


async def main() -> None:
    async with headway.Batcher(Countdown()) as batcher:
        await asyncio.gather(read(batcher, 3), read(batcher, 5), read(batcher, 1))


if __name__ == "__main__":
    asyncio.run(main())
