"""Headway's engine in its own process, token ids in and out; and the same engine with static
batches: all of a batch run until its longest answer ends, and the next batch waits for that."""

import argparse
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.loads import Chat, Load, measure
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.items import Wait

if TYPE_CHECKING:
    from headway.engine.cpu.runner import CpuRunner

KV_CACHE_GIB = 0.25  # in process as over HTTP: 11,650 tokens of the chat model in bf16


class Engine:
    """The production scheduler and runner, driven as the engine's loop drives them."""

    def __init__(self, runner: "CpuRunner") -> None:
        self._runner = runner
        self._scheduler = GenerationScheduler(runner.limits)  # one: it learns how long steps take
        self._number = 0

    def run(self, load: Load) -> None:
        self._generate(load.chats, load.at_once)

    def run_static(self, load: Load) -> None:
        for batch in load.batches:
            longest = max(chat.out for chat in batch)
            self._generate(tuple(Chat(chat.prompt, longest) for chat in batch), load.at_once)

    def _generate(self, chats: tuple[Chat, ...], at_once: int) -> None:
        scheduler = self._scheduler
        waiting = deque(chats)
        while waiting or scheduler.running or scheduler.waiting:
            while waiting and scheduler.running + scheduler.waiting < at_once:
                self._submit(waiting.popleft())
            began = time.perf_counter()
            step = scheduler.next_step(began)
            if isinstance(step, Wait):  # for the rest of a burst
                continue
            tokens = self._runner.run(step).tokens
            for finished in scheduler.complete(step, tokens, time.perf_counter() - began):
                self._runner.drop(finished.sequence)

    def _submit(self, chat: Chat) -> None:
        self._number += 1
        prompt = tuple(chat.prompt)
        self._scheduler.submit(Sequence(self._number, time.perf_counter(), prompt, chat.out))
        self._runner.add(self._number, prompt, Sampling(temperature=0.0))


def make_engine(folder: Path, dtype: str = "auto", quantization: str = "none") -> Engine:
    from headway.engine.starting import EngineOptions, start

    options = EngineOptions(
        max_context=2048,
        dtype=dtype,
        quantization=quantization,
        device="cpu",
        kv_cache_gib=KV_CACHE_GIB,
    )
    return Engine(start(folder, options))  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--static", action="store_true")
    arguments = parser.parse_args()
    engine = make_engine(arguments.folder, arguments.dtype, arguments.quantization)
    run = engine.run_static if arguments.static else engine.run
    measure("engine", run, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
