"""An observer prints why each batch left, and where its items' time went."""

import asyncio
import random

import headway
from headway.events import BatchFinished, Event


async def model(numbers: list[int]) -> list[int]:
    await asyncio.sleep(0.010)
    return numbers


def explain(event: Event) -> None:
    if isinstance(event, BatchFinished):
        batch, oldest = event.batch, event.items[0]
        print(
            f"batch {batch.id:2d}: {batch.rows:2d} rows, reason {event.reason.value:8} "
            f"queued {oldest.queued_s * 1e3:4.1f} ms, lingered {oldest.lingered_s * 1e3:4.1f} ms, "
            f"ran {oldest.ran_s * 1e3:4.1f} ms, at most {batch.batch_cap} rows pay"
        )


async def main() -> None:
    arrivals = random.Random(0)
    batcher = headway.Batcher[int, int](model, observers=[explain], max_batch_size=8)
    async with batcher, asyncio.TaskGroup() as callers:
        for number in range(60):
            callers.create_task(batcher.submit(number))
            await asyncio.sleep(arrivals.expovariate(400))


if __name__ == "__main__":
    asyncio.run(main())
