"""Engines that break where a prompt says so. In a module of their own: another process imports it.

What is to happen once is noted in a file of the model's folder.
"""

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway.models.chat.model import LanguageModel

KILLS = ord("!") - 33 + 5  # the byte's token: special tokens come first
HANGS = ord("?") - 33 + 5
FORGETS = ord("#") - 33 + 5  # runs out of memory


class FragileModel(LanguageModel):
    def engine(self, options: Mapping[str, Any]) -> Any:
        engine = super().engine(options)
        run, folder = engine.run, self.folder()

        def fragile(step: Any) -> Any:
            decodes = [engine._known.get(each.sequence) for each in step.decode]
            for prompt in (known.prompt for known in decodes if known is not None):
                if KILLS in prompt:
                    os.kill(os.getpid(), signal.SIGKILL)
                if HANGS in prompt and _is_first(folder / "hung"):
                    threading.Event().wait()
                if FORGETS in prompt and _is_first(folder / "forgot"):
                    raise MemoryError("no room for this step")
            return run(step)

        engine.run = fragile
        return engine


class PacedModel(LanguageModel):
    """A step takes a moment, so that there is time to stop an answer."""

    def engine(self, options: Mapping[str, Any]) -> Any:
        engine = super().engine(options)
        run = engine.run

        def paced(step: Any) -> Any:
            threading.Event().wait(0.02)
            return run(step)

        engine.run = paced
        return engine


class HugeModel(LanguageModel):
    """Its cache is larger than any address space."""

    def engine(self, options: Mapping[str, Any]) -> Any:
        return np.zeros(2**62, np.int8)


class MortalModel(LanguageModel):
    """Loads once; every other engine fails to."""

    def engine(self, options: Mapping[str, Any]) -> Any:
        if not _is_first(self.folder() / "loaded"):
            raise RuntimeError("the weights are gone")
        return super().engine(options)


def _is_first(note: Path) -> bool:
    try:
        note.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
