"""Urgent calls go first, tenants share by weight, and late answers are not computed."""

import asyncio

import headway

order: list[str] = []


async def model(names: list[str]) -> list[str]:
    order.extend(names)
    await asyncio.sleep(0.010)
    return names


async def main() -> None:
    async with headway.Batcher[str, str](
        model, max_batch_size=4, tenants={"gold": 3.0, "free": 1.0}
    ) as batcher:
        bulk = [batcher.submit(f"bulk {n}", priority="low") for n in range(8)]
        urgent = [batcher.submit("urgent", priority="high")]
        await asyncio.gather(*bulk, *urgent)
        print("priority: the first batch was", order[:4])

        order.clear()
        free = [batcher.submit(f"free {n}", tenant="free") for n in range(12)]
        gold = [batcher.submit(f"gold {n}", tenant="gold") for n in range(12)]
        await asyncio.gather(*free, *gold)
        print("tenants: the first two batches were", order[:8])

        order.clear()
        late = [batcher.submit(f"late {n}", deadline_ms=25) for n in range(40)]
        answers = await asyncio.gather(*late, return_exceptions=True)
        late_ones = sum(isinstance(answer, headway.DeadlineExceeded) for answer in answers)
        print(f"deadline: {late_ones} of 40 cannot make it and are told so; {len(order)} ran")


if __name__ == "__main__":
    asyncio.run(main())
