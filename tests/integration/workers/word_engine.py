"""An engine without torch, for another process to import: each next token is a hash of all before.

A prompt may say what happens to the engine that computes for it.
"""

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fake_engine import FakeEngine
from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Sequence as Asked
from headway.core.generation.step import Step
from headway.errors import ConfigError
from headway.model import Model
from headway.runtime.generation.child import serve
from headway.runtime.workers.process.channel import Channel

KILLS, HANGS, ADAPTED = 60, 61, 62  # tokens of a prompt
ADAPTER = f"of {ADAPTED}"  # of prompts with that token
LIMITS = EngineLimits(blocks=400, block_size=4, max_context=512, max_sequences=32, step_tokens=64)


class _Done(NamedTuple):
    tokens: list[int]
    logprobs: list[Any]
    seconds: None = None
    broken: Mapping[int, str] = MappingProxyType({})

    def result(self) -> "_Done":
        return self


class WordAdapters:
    """Names only."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def read(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}")

    def add(self, adapter: str, weights: None) -> None:
        self.names.add(adapter)

    def drop(self, adapter: str) -> None:
        self.names.remove(adapter)


class WordRunner:
    depth = 1
    computes = "words"
    limits = LIMITS
    vocabulary = 64

    def __init__(self, pace_s: float, most: int) -> None:
        self._most = most
        self._engine = FakeEngine(block_size=LIMITS.block_size)
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._pace_s = pace_s
        self._never = threading.Event()
        self._is_broken = False
        self.adapters = WordAdapters()

    def loaded(self) -> list[str]:
        """The adapters that it has."""
        return sorted(self.adapters.names)

    def add(
        self,
        sequence: int,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        generated: Sequence[int] = (),
    ) -> None:
        self._prompts[sequence] = prompt
        adapter = ADAPTER if ADAPTED in prompt else ""
        self._engine.add(Asked(sequence, 0.0, prompt, max_tokens=1, adapter=adapter))

    def drop(self, sequence: int) -> None:
        self._prompts.pop(sequence, None)
        self._engine.drop(sequence)

    def break_device(self) -> None:
        """From now on it does what CUDA does after an error."""
        self._is_broken = True

    def count(self) -> int:
        return len(self._prompts)

    def start(self, step: Step) -> _Done:
        self._never.wait(self._pace_s)
        if self._is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if len(step.decode) + len(step.prefill) > self._most:
            raise RuntimeError(f"CUBLAS_STATUS_ALLOC_FAILED:\nroom for {self._most} only")
        for decode in step.decode:
            prompt = self._prompts.get(decode.sequence, ())
            if KILLS in prompt:
                os.kill(os.getpid(), signal.SIGKILL)
            if HANGS in prompt:
                self._never.wait()
        tokens = self._engine.run(step)
        return _Done(tokens, [None] * len(tokens))


class WordEngine(Model[Any, Any]):
    def __init__(self, pace_s: float = 0.001, most: int = 1000) -> None:
        """`most`: sequences that its memory has room for."""
        self._pace_s = pace_s
        self._most = most

    def serve(self, line: Channel) -> None:
        runner = WordRunner(self._pace_s, self._most)
        serve(runner, line, has_grammars=False, compile_grammar=str)
