"""Threads without an event loop call one batched function; their calls meet in batches."""

import time
from concurrent.futures import ThreadPoolExecutor

import headway

batches: list[int] = []


@headway.batched(max_batch_size=64)
def score(words: list[str]) -> list[int]:
    batches.append(len(words))
    time.sleep(0.010)  # a call costs 10 ms, whatever is in it
    return [sum(map(ord, word)) % 100 for word in words]


def main() -> None:
    words = [f"word-{n}" for n in range(320)]
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=32) as threads:
        scores = list(threads.map(score.call, words))
    took = time.monotonic() - started
    print(f"{len(scores)} words from 32 threads in {took:.2f} s; singly it would be 3.20 s")
    print(f"{len(batches)} batches, {sum(batches) / len(batches):.0f} words each on average")


if __name__ == "__main__":
    main()
