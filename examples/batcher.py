"""`headway.Batcher`: a batched function with an explicit lifetime, limits and statistics."""

import asyncio
import time

import headway


def square(numbers: list[int]) -> list[int]:
    time.sleep(0.010)  # a call costs 10 ms, whatever is in it
    return [number * number for number in numbers]


async def main() -> None:
    async with headway.Batcher[int, int](square, max_batch_size=16, max_queue=100) as batcher:
        table = await batcher.warm_up(7)  # optional: time it before the first caller comes
        print(f"a batch of 1 takes about {table.seconds[0][0] * 1e3:.0f} ms")
        started = time.monotonic()
        squares = await asyncio.gather(*(batcher.submit(n) for n in range(64)))
        print(f"64 answers, last {squares[-1]}, in {(time.monotonic() - started) * 1e3:.0f} ms")
        try:
            await asyncio.gather(*(batcher.submit(n) for n in range(500)))
        except headway.QueueFull as error:
            print(f"500 at once are refused early: {error}; limit {error.limit}")
    print("closed: everyone was answered, the worker thread is gone")


if __name__ == "__main__":
    asyncio.run(main())
