"""A device's error in the middle of answers: stage `crash` of `benchmarks.lab.generation_gpu`."""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab.llama_shapes import save_folder
from benchmarks.report import Bar, Report
from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Sequence as Asked
from headway.hosting.generation.engine import EngineModel
from headway.models.chat.model import LanguageModel
from headway.runtime.generation.loop import PlainTokens, SequenceOutput
from headway.runtime.generation.process import EngineProcess
from headway.runtime.workers.process.options import ProcessOptions

COUNT, TOKENS = 24, 200


class BreakableModel(LanguageModel):
    """Its engine has a method that makes the device fail an assertion."""

    def engine(self, options: Mapping[str, Any]) -> Any:
        import torch

        engine = super().engine(options)

        def break_device() -> None:
            torch._assert_async(torch.zeros((), dtype=torch.bool, device="cuda"))

        engine.break_device = break_device
        return engine


async def crash() -> Report:
    """The same answers twice: undisturbed, and with an engine that is lost in the middle."""
    with tempfile.TemporaryDirectory() as work:
        folder = _with_weights(save_folder(Path(work), "tiny"))
        wanted, _, _ = await _answers(folder, is_broken=False)
        found, restarts, away_s = await _answers(folder, is_broken=True)
    same = sum(found.get(number) == tokens for number, tokens in wanted.items())
    whole = sum(len(tokens) == TOKENS for tokens in found.values())
    return Report(
        "Generation on a GPU: a device-side assertion fails in the middle of answers",
        ["sequences", "tokens each", "restarts", "no token for"],
        [[COUNT, TOKENS, restarts, f"{away_s:.1f} s"]],
        [
            Bar("the engine comes back, once", f"{restarts} restarts", restarts == 1),
            Bar("every answer is whole", f"{whole} of {COUNT}", whole == COUNT),
            Bar("and the same as undisturbed", f"{same} of {COUNT}", same == COUNT),
        ],
        ["a tiny model in float32, greedy; the engine in a process of its own"],
    )


def _with_weights(folder: Path) -> Path:
    """Of the same numbers for every engine, and large enough for texts that vary."""
    import torch
    from safetensors.torch import save_file

    from headway.engine.architecture import LlamaSpec
    from headway.engine.weights import random_tensors
    from headway.files import read_json

    torch.manual_seed(0)
    spec = LlamaSpec.of(read_json(folder / "config.json"))
    drawn = random_tensors(spec, dtype=torch.float32, device="cpu")
    save_file(
        {name: each * 10 if each.ndim == 2 else each for name, each in drawn},
        folder / "model.safetensors",
    )
    return folder


async def _answers(folder: Path, *, is_broken: bool) -> tuple[dict[int, list[int]], int, float]:
    tokens: dict[int, list[int]] = {}
    ended: set[int] = set()
    moved = asyncio.Event()
    heard: list[float] = []

    def report(plain: PlainTokens, outputs: Sequence[SequenceOutput]) -> None:
        heard.append(time.monotonic())
        for sequence, token in zip(*plain, strict=True):
            tokens.setdefault(sequence, []).append(token)
        for output in outputs:
            assert output.error is None, output.error
            if output.token is not None:
                tokens.setdefault(output.sequence, []).append(output.token)
            if output.finished is not None:
                ended.add(output.sequence)
        moved.set()

    options = {"max_sequences": 32, "dtype": "float32", "kv_cache_gib": 0.5}
    engine = EngineProcess(
        "tiny",
        EngineModel(BreakableModel(str(folder)), options, max_queue=100, weights={}),
        ProcessOptions(load_timeout_s=120.0, heartbeat_timeout_s=60.0),
        report=report,
        tell=lambda event: moved.set(),
    )
    await engine.start()
    try:
        for number in range(COUNT):
            prompt = tuple(range(10 + number, 40 + 2 * number))
            engine.submit(Asked(number, 0.0, prompt, TOKENS), Sampling(temperature=0.0))
        if is_broken:
            await _wait(moved, lambda: len(tokens.get(COUNT - 1, ())) > TOKENS // 4)
            await engine.call("break_device")
        await _wait(moved, lambda: len(ended) == COUNT)
        gaps = [later - before for before, later in itertools.pairwise(heard)]
        return tokens, engine.status.restarts, max(gaps)
    finally:
        await engine.close()


async def _wait(moved: asyncio.Event, is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_so():
            moved.clear()
            await moved.wait()
