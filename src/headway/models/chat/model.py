"""A language model as the server has it: where its files are, its text side, and its engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.files import read_json
from headway.models.chat.finding import find_language_model
from headway.models.chat.text import ChatText

ENGINE_MODULE = "headway.engine.starting"  # imports torch
_HEADS = ("ForCausalLM", "LMHeadModel")


def is_language_model(folder: Path) -> bool:
    """Whether transformers saved it with a head that says the next token. (Some that embed are
    saved so, too: sentence-transformers then puts a modules.json beside it.)"""
    if (folder / "modules.json").is_file() or not (folder / "config.json").is_file():
        return False
    kinds = read_json(folder / "config.json").get("architectures")
    return isinstance(kinds, list) and any(str(each).endswith(_HEADS) for each in kinds)


class LanguageModel:
    """A folder of safetensors, a GGUF file, or `chat`. Nothing is read before `folder()`."""

    def __init__(
        self,
        target: str,
        *,
        threads: int | None = None,
        random_weights: bool = False,
        chunking: bool = True,
    ) -> None:
        """The last two are for benchmarks: no file of weights is read; a prompt is computed in one
        step, and all others wait."""
        if threads is not None and threads < 1:
            raise ConfigError(f"must be at least 1, not {threads}", field="threads")
        self._target = target
        self._engine_options: dict[str, Any] = {
            "threads": threads,
            "random_weights": random_weights,
            "chunking": chunking,
        }
        self._folder: Path | None = None

    def folder(self) -> Path:
        """The folder; slow the first time, when a GGUF file is converted. Raises ConfigError."""
        if self._folder is None:
            from headway.engine.support import why_not, why_unknown

            folder = find_language_model(self._target)
            config = read_json(folder / "config.json")
            # Before an engine is started, which takes a while.
            reason = why_not(config, "transformers") or why_unknown(config)
            if reason is not None:
                raise ConfigError(f"{folder}: {reason}")
            self._folder = folder
        return self._folder

    def text(self) -> ChatText:
        return ChatText(self.folder())

    def engine(self, options: Mapping[str, Any]) -> Any:
        """A `StepRunner`, in the thread that will run its steps: only here torch is imported."""
        try:
            from headway.engine.starting import EngineOptions, start
        except ImportError as error:
            raise ConfigError("language models need pip install 'headway[llm]'") from error
        return start(self.folder(), EngineOptions(**options, **self._engine_options))
