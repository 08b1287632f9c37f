"""What one step takes: decodes alone, and with prompts beside them; the host's part, and the whole.

`python -m benchmarks.lab.generation_steps [--shapes 8B 1B]`, random weights, contexts of 320 tokens
and more. `launched` is the time until the host is free again: a step of decodes is one graph, one
with prompts is launched kernel by kernel. Where that is most of the whole, the host is what limits.
`--shapes tiny` runs on any CPU.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.lab.llama_shapes import SHAPES, save_folder
from benchmarks.report import Report, machine
from headway.core.generation.step import Decode, Prefill, Step

DECODES = (0, 1, 8, 32, 64, 96, 128)
PROMPTS = (0, 64, 256, 512, 1024)
CONTEXT = 320  # tokens before the first timed step
ROOM = 512  # tokens that a sequence has blocks for
TIMES = 8


class Steps:
    """Makes steps for an engine, as a scheduler would: each sequence in a slot, with own blocks."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        size = engine.limits.block_size
        self._per_sequence = -(-max(ROOM, *PROMPTS) // size)
        self._size = size
        self._number = 0

    def fill(self, slots: int) -> None:
        """Their contexts, so that decodes have something to read."""
        for slot in range(slots):
            self.run(0, CONTEXT, slot=slot)

    def run(self, decodes: int, prompt: int, *, slot: int | None = None, position: int = 0) -> Any:
        """Seconds until it was launched, and until its tokens were there."""
        rows = tuple(Decode(-1, each, position, ()) for each in range(decodes))
        prompts: tuple[Prefill, ...] = ()
        if prompt:
            at = max(DECODES) if slot is None else slot
            first = at * self._per_sequence
            blocks = tuple(range(first, first + self._per_sequence))
            prompts = (Prefill(-1, at, 0, (7,) * prompt, blocks, is_first=True, is_last=True),)
        self._number += 1
        started = time.perf_counter()
        running = self._engine.start(Step(self._number, rows, prompts, (), ()))
        launched = time.perf_counter()
        running.result()
        return launched - started, time.perf_counter() - started


def steps(shape: str) -> Report:
    from headway.engine.starting import EngineOptions, start

    with tempfile.TemporaryDirectory() as work:
        folder = save_folder(Path(work), shape)
        sizes: dict[str, Any] = {"kv_cache_gib": 0.5} if shape == "tiny" else {}
        options = EngineOptions(
            random_weights=True, max_context=4096, max_sequences=256, step_tokens=2048, **sizes
        )
        started = time.perf_counter()
        engine = start(folder, options)
        ready_s = time.perf_counter() - started
    maker = Steps(engine)
    maker.fill(max(DECODES))
    rows: list[list[object]] = []
    for decodes in DECODES:
        cells = []
        for prompt in PROMPTS:
            if not decodes and not prompt:
                cells.append("")
                continue
            timed = [
                maker.run(decodes, prompt, position=CONTEXT + number) for number in range(TIMES)
            ][2:]
            launched, whole = (statistics.median(each) * 1e3 for each in zip(*timed, strict=True))
            cells.append(f"{launched:.2f} / {whole:.2f}")
        rows.append([decodes, *cells])
    return Report(
        f"Steps of the {shape} shape: launched / done, ms",
        ["decodes", *(f"{prompt} prompt tokens" for prompt in PROMPTS)],
        rows,
        [],
        [f"median of {TIMES - 2}, one step at a time; the engine was ready in {ready_s:.0f} s"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["8B", "1B"], choices=SHAPES)
    options = parser.parse_args()
    for shape in options.shapes:
        print(steps(shape).to_markdown(), flush=True)
    print(f"- {machine()}")


if __name__ == "__main__":
    main()
