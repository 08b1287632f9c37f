"""A language model's engine with what it needs beside weights: limits, and grammars to follow.

Made and pickled in the front, where it is light; loaded where the engine runs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from headway.errors import ConfigError
from headway.model import Model
from headway.models.chat.grammars import Grammars, Vocabulary
from headway.models.chat.model import LanguageModel
from headway.runtime.calling.faults import is_out_of_memory
from headway.runtime.generation.loop import StepRunner
from headway.runtime.workers.process.channel import Channel


class EngineModel(Model[Any, Any]):
    """The engine as a model: in a process of its own it serves a line; in a thread, `engine` is
    used."""

    def __init__(
        self,
        model: LanguageModel,
        options: Mapping[str, Any],
        *,
        max_queue: int,
        weights: Mapping[str, float],
    ) -> None:
        self._model = model
        self._options = dict(options)
        self._max_queue = max_queue
        self._weights = dict(weights)
        self._grammars: Grammars | None = None
        self.has_grammars = False
        self.engine: StepRunner

    def load(self) -> None:
        try:
            engine = self._model.engine(self._options)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                f"there is too little memory for the weights and the KV cache: {error}",
                field="kv_cache_gib",
            ) from error
        self.has_grammars = hasattr(engine, "matcher_of")
        engine.matcher_of = lambda grammar: self._compiler().matcher(grammar)
        engine.limits = dataclasses.replace(
            engine.limits, max_queue=self._max_queue, tenant_weights=self._weights
        )
        self.engine = engine

    def serve(self, line: Channel) -> None:
        from headway.runtime.generation.child import serve

        serve(self.engine, line, has_grammars=self.has_grammars, compile_grammar=self._compile)

    def _compile(self, grammar: str) -> None:
        """Compile off the step: the engine then finds the grammar compiled."""
        self._compiler().compile(grammar)

    def _compiler(self) -> Grammars:
        if self._grammars is None:
            text = self._model.text()
            ends = tuple(sorted(text.stop_ids))
            self._grammars = Grammars(
                Vocabulary(text.tokenizer.to_str(), self.engine.vocabulary, ends)
            )
        return self._grammars
