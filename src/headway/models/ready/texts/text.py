"""The common part of text models: a text becomes tokens before it is queued, its size is their
number, and a batch is padded to its longest. The tasks decide which weights run, and what becomes
of the result."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy

from headway.errors import ConfigError, InputTooLarge, InvalidInput, called
from headway.files import read_optional_json
from headway.model import Model, Tensor
from headway.models.ready.texts.encoders import (
    ONNX_FILES,
    EncodedBatch,
    Encoder,
    OnnxEncoder,
    ProofTexts,
)
from headway.models.ready.texts.proof import LENGTHS
from headway.models.sources.installed import read_tokenizer
from headway.models.sources.weights import PackagedWeights, find_weights

# No language needs more: a longer text is refused before a second is spent on its tokens.
_CHARACTERS_PER_TOKEN = 200
_SAMPLE_TOKENS = (5, 32, 128, 256)  # from a search query to a long paragraph


class TextModel(Model[Any, Any]):
    """Tokens in, rows of numbers out. A text of more than `max_tokens` is refused, or cut where the
    caller (the parameter `truncate`) or the operator (the option) says so."""

    writes_inputs: ClassVar[bool] = False
    inputs: Sequence[Tensor] = (Tensor("text", "object", (-1,)),)
    outputs: Sequence[Tensor] = ()

    def __init__(
        self,
        encoder: Encoder,
        *,
        max_tokens: int,
        truncate: bool = False,
        pad_id: int = 0,
        prompt: str = "",
        lowers_case: bool = False,
        proof_tokens: int = 0,
    ) -> None:
        """`prompt` goes before every text. `proof_tokens`: how long the texts are on which loading
        proves that a batch changes no answer; 0: the kind of network is known to be safe."""
        self._encoder = encoder
        self.packed = encoder.packs
        self._max_tokens = max_tokens
        self._truncate = truncate
        self._pad_id = pad_id
        self._prompt = prompt
        self._lowers_case = lowers_case
        self._proof_tokens = proof_tokens

    def setup(self) -> None:
        file = self._encoder.find() / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{file}: there is no such file")
        tokenizer = read_tokenizer(file, "models of texts", "onnx")
        tokenizer.no_padding()  # as shipped, many pad every text to 128 tokens
        self._cut_side = _cut_side(file.parent)
        tokenizer.enable_truncation(self._max_tokens, direction=self._cut_side)
        if self._lowers_case:
            _lower_case(tokenizer)
        self._tokenizer = tokenizer
        self._vocabulary = max(tokenizer.get_vocab().values(), default=0) + 1  # there may be gaps
        self._first, self._last = _frame(tokenizer)
        self._types = _types(tokenizer)

    def load(self) -> None:
        if not self._proof_tokens:
            self._encoder.load()
            return
        self._encoder.load(self._proof_texts())
        self._check_width()

    def _proof_texts(self) -> ProofTexts:
        """Texts made of random tokens from a fixed seed, framed as real texts are."""
        rng = numpy.random.default_rng(20261118)
        frame = len(self._first) + len(self._last)
        lengths = {frame + 1, *LENGTHS, self._proof_tokens}
        known = sorted(max(frame + 1, min(length, self._max_tokens)) for length in lengths)
        texts = []
        for length in sorted([*known, known[len(known) // 2]]):  # two are of one length
            own = rng.integers(0, self._vocabulary, length - frame).tolist()
            if len(own) > 1:
                own[len(own) // 2] = self._pad_id  # a text may contain it
            texts.append(self._batch([[*self._first, *own, *self._last]]))
        return ProofTexts(texts, self._pad_id, self._vocabulary)

    def _check_width(self) -> None:
        """Is what the network gives as wide as what is made of it? Raises ConfigError."""

    @property
    def device(self) -> str:
        """The device that it runs on; empty: that is known only once it is loaded."""
        return self._encoder.device

    def files(self) -> list[Path]:
        """The model's files: a warm-up table holds as long as these are the same."""
        return self._encoder.files()

    def samples(self) -> list[Any]:
        """Texts to time the model with."""
        special = self._tokenizer.num_special_tokens_to_add(False)
        return [words(tokens - special) for tokens in self._sample_tokens()]

    def prepare(self, raw: str | list[int], *, truncate: bool | None = None) -> Any:
        return self._prepare(raw, truncate=truncate, prompt=self._prompt)

    def _prepare(self, raw: str | list[int], *, truncate: bool | None, prompt: str) -> Any:
        if isinstance(raw, str):
            return _tokens(self._encode("text", raw, truncate=truncate, prompt=prompt).ids)
        self._check_ids(raw, prompt)
        if len(raw) <= self._max_tokens:
            return _tokens(raw)
        if not self._cuts(truncate):
            raise self._too_long("text", len(raw))
        if self._cut_side == "left":
            return _tokens([*self._first, *raw[len(raw) - self._max_tokens + len(self._first) :]])
        return _tokens([*raw[: self._max_tokens - len(self._last)], *self._last])

    @property
    def token_ids(self) -> dict[str, Any]:
        """Which token ids it takes in place of a text: those of its own tokenizer."""
        return {
            "tokenizer": "the model's own",
            "vocabulary": self._vocabulary,
            "begin_with": self._first,
            "end_with": self._last,
        }

    def _check_ids(self, ids: Any, prompt: str) -> None:
        """Refuse ids of another tokenizer, which would mean another text. Raises InvalidInput."""
        if prompt:
            raise InvalidInput(
                f"input 'text': this model puts {prompt!r} before the text, which token ids may "
                "lack; send texts instead"
            )
        if not ids or not all(type(each) is int and 0 <= each < self._vocabulary for each in ids):
            raise InvalidInput(
                f"input 'text': a text, or token ids from 0 to {self._vocabulary - 1}, is expected"
            )
        first, last = self._first, self._last
        if ids[: len(first)] != first or ids[len(ids) - len(last) :] != last:
            raise InvalidInput(
                f"input 'text': these token ids are not of this model's own tokenizer, whose texts "
                f"begin with {first} and end with {last}; send texts instead"
            )

    def prepare_many(self, raws: list[Any]) -> Sequence[Any]:
        """Prepare all texts at once, on every core. Raises if one is unusual: then each is prepared
        alone."""
        most = self._max_tokens * _CHARACTERS_PER_TOKEN
        if not all(type(raw) is str and 0 < len(raw) <= most for raw in raws):
            raise InvalidInput("not all are texts of a sane length")
        texts = [self._prompt + raw for raw in raws] if self._prompt else raws
        encodings = self._tokenizer.encode_batch(texts)
        if not self._truncate and any(each.overflowing for each in encodings):
            raise InvalidInput("not all are short enough")
        return [_tokens(each.ids) for each in encodings]

    def size(self, item: Any) -> int:
        return len(item)

    # ---- for the tasks

    def _sample_tokens(self) -> list[int]:
        return sorted({min(tokens, self._max_tokens) for tokens in _SAMPLE_TOKENS})

    def _encode(self, name: str, text: str, *, truncate: bool | None, prompt: str = "") -> Any:
        """The tokens of a text, with the special ones that the model expects. Raises InvalidInput,
        InputTooLarge."""
        encoding = self._tokenizer.encode(prompt + self._checked(name, text, truncate=truncate))
        if encoding.overflowing and not self._cuts(truncate):
            special = self._tokenizer.num_special_tokens_to_add(False)
            raise self._too_long(name, length_of(encoding, special))
        return encoding

    def _checked(self, name: str, text: str, *, truncate: bool | None) -> str:
        if not text:
            raise InvalidInput(f"{called(name)} is empty")
        most = self._max_tokens * _CHARACTERS_PER_TOKEN
        if len(text) > most and not self._cuts(truncate):
            raise InputTooLarge(
                f"{called(name)} has {len(text)} characters; the model reads {self._max_tokens} "
                f"tokens, which are never more than {most}",
                limit=self._max_tokens,
            )
        return text[-most:] if self._cut_side == "left" else text[:most]

    def _cuts(self, truncate: bool | None) -> bool:
        return self._truncate if truncate is None else truncate

    def _plain_tokens(self, text: str) -> Any:
        """The tokens of the text alone, without special ones, as far as the model reads."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _too_long(self, name: str, tokens: int, limit: int | None = None) -> InputTooLarge:
        limit = self._max_tokens if limit is None else limit
        advice = "" if name == "query" else " (truncate=true cuts it)"
        return InputTooLarge(
            f"{called(name)} has {tokens} tokens; the limit is {limit}{advice}", limit=limit
        )

    def _prompt_tokens(self, prompt: str) -> int:
        """The number of a text's tokens that are its prompt's, with the special ones before it."""
        encoding = self._tokenizer.encode(prompt)
        return len(encoding.ids) - encoding.special_tokens_mask[-1] if prompt else 0

    def _batch(
        self, items: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> EncodedBatch:
        ids = _padded(items, self._pad_id)
        lengths = numpy.array([len(item) for item in items])
        mask = (numpy.arange(ids.shape[1]) < lengths[:, None]).astype(numpy.int64)
        if types is None and self._types is not None:
            types = [self._types.of(len(item)) for item in items]
        return EncodedBatch(
            ids, mask, numpy.zeros_like(ids) if types is None else _padded(types, 0)
        )


class _Types(NamedTuple):
    """The token types of a single text, where they are not all 0."""

    first: list[int]
    own: int
    last: list[int]

    def of(self, length: int) -> list[int]:
        own = [self.own] * (length - len(self.first) - len(self.last))
        return [*self.first, *own, *self.last][:length]


def _cut_side(folder: Path) -> str:
    """The side on which a text that is too long is cut."""
    file = folder / "tokenizer_config.json"
    side = read_optional_json(file).get("truncation_side")
    if side not in (None, "left", "right"):
        raise ConfigError(f"{file}: truncation_side = {side!r} is not served")
    return side or "right"


def _types(tokenizer: Any) -> _Types | None:
    first, last = map(len, _frame(tokenizer))
    types = tokenizer.encode("a").type_ids
    if not any(types):
        return None
    return _Types(types[:first], types[first], types[len(types) - last :])


def _lower_case(tokenizer: Any) -> None:
    """Make the tokenizer convert to lower case first, as sentence-transformers does."""
    from tokenizers import normalizers

    own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])


def _frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and after every text."""
    encoding = tokenizer.encode("a")
    marks = encoding.special_tokens_mask
    own = [index for index, is_special in enumerate(marks) if not is_special]
    if not own:  # nothing is known of this letter
        return [], []
    return encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]


def _tokens(ids: Sequence[int]) -> "numpy.ndarray[Any, Any]":
    """The ids as an array, which is padded, and sent to a worker process, in one go."""
    return numpy.array(ids, numpy.int32)


def words(count: int) -> str:
    """A text of about `count` tokens."""
    return " ".join(["hello"] * max(1, count))


def length_of(encoding: Any, special: int = 0) -> int:
    """The number of tokens if nothing had been cut; special ones are in every part."""
    more = sum(len(part.ids) - special for part in encoding.overflowing)
    return len(encoding.ids) + more


def _padded(rows: Sequence[Sequence[int]], value: int) -> "numpy.ndarray[Any, Any]":
    padded = numpy.full((len(rows), max(map(len, rows))), value, numpy.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded


_POSITIONS = 512
_FRAME = 2  # tokens of every text


class PinnedNetwork(TextModel):
    """Options: `weights` (a folder with the .onnx file and tokenizer.json, or a name on the hub; by
    default the pinned package), `device` and `threads` (of onnxruntime), `max_tokens`, `truncate`
    (longer texts are cut, not refused)."""

    pinned: ClassVar[PackagedWeights]
    names: ClassVar[Sequence[str]] = ONNX_FILES
    output: ClassVar[str | None] = None
    task: ClassVar[Mapping[str, Any]] = {}  # for the class of the task

    def __init__(
        self,
        *,
        weights: str | None = None,
        device: str = "",
        threads: int = 1,
        max_tokens: int = 256,
        truncate: bool = False,
    ) -> None:
        if not _FRAME <= max_tokens <= _POSITIONS:
            raise ConfigError(
                f"must be from {_FRAME} to {_POSITIONS}, not {max_tokens}", field="max_tokens"
            )
        files = ["tokenizer.json", *(f"{name}*" for name in self.names)]
        encoder = OnnxEncoder(
            self.pinned.find if weights is None else partial(find_weights, weights, patterns=files),
            device=device,
            threads=threads,
            names=self.names,
            output=self.output,
        )
        super().__init__(encoder, max_tokens=max_tokens, truncate=truncate, **self.task)
