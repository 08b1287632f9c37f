"""The networks under the models of texts, on onnxruntime or on torch: padded tokens in, states or
logits out. What they mean is not known here.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_args

import numpy

from headway.backends.onnx import device_of, likely_device, open_session
from headway.backends.torch import choose_device, import_torch
from headway.errors import ConfigError
from headway.files import ProofNote
from headway.models.ready.texts import opening, packed, proof
from headway.models.sources.installed import require

Array = numpy.ndarray[Any, Any]


class EncodedBatch(NamedTuple):
    """Tokens of several texts, padded: rows × length."""

    ids: Array
    mask: Array  # 1: a token, 0: padding
    types: Array  # 0: the first text of a pair, 1: the second


# From what the network gives and the mask, both as its runtime's own arrays, to one row a text. It
# runs where the network does: of the states of every token, only what is made of them is moved.
Head = Callable[[Any, Any], Any]

ONNX_FILES = ("onnx/model.onnx", "model.onnx")  # the first that a folder has
_OUTPUTS = ("last_hidden_state", "token_embeddings", "logits")  # of an ONNX file


class ProofTexts(NamedTuple):
    """Texts of made-up tokens, the shortest first, the longest last; each a batch of its own."""

    alone: Sequence[EncodedBatch]
    pad_id: int
    vocabulary: int  # tokens that the tokenizer has

    def together(self, places: Sequence[int]) -> EncodedBatch:
        batches = [self.alone[place] for place in places]
        full = max(batch.ids.shape[1] for batch in batches)
        fills = (self.pad_id, 0, 0)
        return EncodedBatch(
            *(
                numpy.concatenate([_filled(batch[which], full, fill) for batch in batches])
                for which, fill in enumerate(fills)
            )
        )


def _filled(array: Array, full: int, value: int) -> Array:
    return numpy.pad(array, ((0, 0), (0, full - array.shape[1])), constant_values=value)


class Encoder(Protocol):
    """The weights in a folder, and the library that runs them."""

    packs: bool  # computes no padding: a batch costs as much as its tokens

    @property
    def device(self) -> str:
        """The device that it runs on, or will; empty: that is known only once it is loaded."""

    def find(self) -> Path:
        """The folder, checked. Raises ConfigError."""

    def load(self, texts: ProofTexts | None = None) -> None:
        """Load the network; if `texts` are given, prove it first. Raises ConfigError."""

    def files(self) -> list[Path]: ...

    def run(self, batch: EncodedBatch, head: Head) -> Array:
        """A row of float32 for each text."""


class OnnxEncoder:
    """An .onnx file: the first of `names` that the folder has. `output`: of several, this one."""

    packs = False

    def __init__(
        self,
        find: Callable[[], Path],
        *,
        names: Sequence[str] = ONNX_FILES,
        output: str | None = None,
        device: str = "",
        threads: int = 1,
    ) -> None:
        self._find = find
        self._device_asked = device
        self._device: str | None = None
        self._folder: Path | None = None
        self._names = names
        self._output = None if output is None else [output]
        self._threads = threads
        self._together: proof.Together = "any"

    def find(self) -> Path:
        if self._folder is None:
            self._folder = self._find()
        return self._folder

    def load(self, texts: ProofTexts | None = None) -> None:
        asked = self._device_asked
        self._session = open_session(self._file(), device=asked, threads=self._threads)
        self._device = device_of(self._session, asked)
        self._inputs = {each.name for each in self._session.get_inputs()}
        if self._output is None:
            self._output = [self._known_output([each.name for each in self._session.get_outputs()])]
        if texts is not None:
            self._prove(texts)

    def _prove(self, texts: ProofTexts) -> None:
        import onnxruntime

        note = proof.note_of(
            [each for each in (self._file(), self.find() / "tokenizer.json") if each.is_file()],
            *(onnxruntime.__version__, self._device, texts.pad_id, len(texts.alone[-1].ids[0])),
        )
        found = proof.noted(note)
        if found is None:
            alone = _alone(self._given, texts, self._file())
            bounds = proof.bounds_of(alone, alone)
            run = functools.partial(_rows_of, self._given, texts)
            found = proof.find_together(run, alone, bounds, self._file())
            note.write(found)
        self._together = proof.tell(found, self._file())

    @property
    def device(self) -> str:
        return likely_device(self._device_asked) if self._device is None else self._device

    def files(self) -> list[Path]:
        file = self._file()
        beside = sorted(file.parent.glob(f"{file.name}[_.]data"))
        return [each for each in (file, *beside, self.find() / "tokenizer.json") if each.is_file()]

    def run(self, batch: EncodedBatch, head: Head) -> Array:
        return in_groups(self._together, batch, lambda some: head(self._given(some), some.mask))

    def _given(self, batch: EncodedBatch) -> Array:
        feeds = {
            "input_ids": batch.ids,
            "attention_mask": batch.mask,
            "token_type_ids": batch.types,
        }
        given: Array = self._session.run(
            self._output, {name: array for name, array in feeds.items() if name in self._inputs}
        )[0]
        return given

    def _known_output(self, names: Sequence[str]) -> str:
        """The output that is used: the only one, or the only known one among several."""
        known = [name for name in names if name in _OUTPUTS] if len(names) > 1 else names
        if len(known) != 1:
            raise ConfigError(f"{self._file()} gives {names}; one of {_OUTPUTS} is expected")
        return known[0]

    def _file(self) -> Path:
        files = [self.find() / name for name in self._names]
        return next((file for file in files if file.is_file()), files[-1])


class TorchEncoder:
    """A folder of transformers. Only safetensors are read, and code in the folder never runs."""

    def __init__(
        self,
        path: Path,
        auto_class: str,
        *,
        device: str = "",
        threads: int = 1,
        dtype: str = "",
        packs: bool = False,
    ) -> None:
        if dtype not in ("", "float32", *packed.SHORT_DTYPES):
            raise ConfigError(f"{dtype!r} is not one of float32, bfloat16, float16", field="dtype")
        self.packs = packs
        self._device = device
        self._dtype = dtype or "float32"
        self._path = path
        self._auto_class = auto_class
        self._device_asked = device
        self._threads = threads
        self._together: proof.Together = "any"

    @property
    def device(self) -> str:
        return self._device

    def find(self) -> Path:
        return self._path

    def load(self, texts: ProofTexts | None = None) -> None:
        torch = self._torch = import_torch()
        transformers = require("transformers", "folders of transformers", "torch")
        torch.set_num_threads(self._threads)
        self._device = choose_device(torch, self._device_asked)
        self._takes_types = opening.takes_types(self._path)
        note = None if texts is None else self._note(transformers, texts)
        found = None if note is None else proof.noted(note)
        if texts is not None and found is None:
            opening.check_tokenizer(self._path)
            found = self._prove(texts)
            assert note is not None
            note.write(found)
        else:
            self._open(self._dtype)
            self._use_packed()
        self._together = proof.tell(found or "any", self._path)

    def _open(self, dtype: str) -> None:
        model = opening.open_network(self._path, self._auto_class, getattr(self._torch, dtype))
        self._model = model.eval().to(self._device)
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        self._has_types = getattr(model.config, "type_vocab_size", 2) > 1 and self._takes_types

    def _use_packed(self) -> None:
        if self.packs:
            packed.use(self._model)

    def _note(self, transformers: Any, texts: ProofTexts) -> ProofNote:
        names = ("config.json", "tokenizer.json", "tokenizer_config.json")
        files = [self._path / name for name in names]
        return proof.note_of(
            [file for file in files if file.is_file()],
            *(self._torch.__version__, transformers.__version__, version("tokenizers")),
            *(self._auto_class, self.packs, self._device, self._dtype, len(texts.alone[-1].ids[0])),
        )

    def _prove(self, texts: ProofTexts) -> proof.Together:
        """Prove it in float32 first, where a mistake cannot be taken for rounding."""
        exact: Sequence[Array] | None = None
        found: proof.Together = "any"
        for dtype in dict.fromkeys(("float32", self._dtype)):
            self._open(dtype)
            self._check_vocabulary(texts)
            alone = _alone(self._library, texts, self._path)
            bounds = proof.bounds_of(alone, exact or alone)
            exact = exact or alone
            self._use_packed()
            run = functools.partial(_rows_of, self._given, texts)
            found = max(
                found,
                proof.find_together(run, alone, bounds, self._path),
                key=get_args(proof.Together).index,
            )
        return found

    def _check_vocabulary(self, texts: ProofTexts) -> None:
        """A token beyond its table would end the GPU's context, not only the call."""
        known = getattr(self._model.get_input_embeddings(), "num_embeddings", texts.vocabulary)
        if texts.vocabulary > known:
            raise ConfigError(
                f"{self._path}: there are {texts.vocabulary} tokens in tokenizer.json; the network "
                f"knows {known}"
            )

    def files(self) -> list[Path]:
        return [each for each in self._path.rglob("*") if each.is_file()]

    def run(self, batch: EncodedBatch, head: Head) -> Array:
        with self._torch.inference_mode():
            return in_groups(self._together, batch, lambda some: self._row(some, head))

    def _row(self, batch: EncodedBatch, head: Head) -> Array:
        mask = self._torch.as_tensor(batch.mask, device=self._device)
        row: Array = head(self._states(batch), mask).float().cpu().numpy()
        return row

    def _states(self, batch: EncodedBatch) -> Any:
        if self.packs:
            types = batch.types if self._has_types else None
            return packed.run(self._model, batch.ids, batch.mask, types)
        return self._forward(batch)

    def _forward(self, batch: EncodedBatch) -> Any:
        """Run the network as the library does."""
        torch = self._torch
        ids, mask, types = (torch.as_tensor(each, device=self._device) for each in batch)
        more = {"attention_mask": mask, "token_type_ids": types if self._has_types else None}
        given = {n: each for n, each in more.items() if each is not None and n in self._takes}
        return self._model(input_ids=ids, **given)[0]

    # ---- for the proof: as numpy's

    def _given(self, batch: EncodedBatch) -> Array:
        with self._torch.inference_mode():
            given: Array = self._states(batch).float().cpu().numpy()
        return given

    def _library(self, batch: EncodedBatch) -> Array:
        with self._torch.inference_mode():
            given: Array = self._forward(batch).float().cpu().numpy()
        return given


# ---- which texts share a batch


def in_groups(
    together: proof.Together, batch: EncodedBatch, run: Callable[[EncodedBatch], Array]
) -> Array:
    """The rows in their order; texts are run only together with those that `together` allows."""
    if together == "any" or len(batch.ids) == 1:
        return run(batch).astype(numpy.float32, copy=False)
    lengths = batch.mask.sum(1)
    keys = range(len(lengths)) if together == "one text" else lengths.tolist()
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    rows: Array | None = None
    for some in places.values():
        length = lengths[some[0]]
        found = run(EncodedBatch(*(each[some, :length] for each in batch)))
        rows = (
            numpy.empty((len(lengths), *found.shape[1:]), numpy.float32) if rows is None else rows
        )
        rows[some] = found
    assert rows is not None
    return rows


def _alone(
    given: Callable[[EncodedBatch], Array], texts: ProofTexts, where: Path
) -> Sequence[Array]:
    """Raises ConfigError."""
    rows = []
    for batch in texts.alone:
        tokens = batch.ids.shape[1]
        try:
            [row] = given(batch)
        except Exception as error:  # the library's own, of many kinds
            raise ConfigError(
                f"{where}: a text of {tokens} tokens cannot be computed: {error}"
            ) from error
        if row.ndim == 2 and len(row) != tokens:
            raise ConfigError(f"{where}: it has {len(row)} states for {tokens} tokens")
        rows.append(row)
    return rows


def _rows_of(
    given: Callable[[EncodedBatch], Array],
    texts: ProofTexts,
    places: Sequence[int],
    together: proof.Together,
) -> Sequence[Array]:
    batch = texts.together(places)
    if together == "any":
        rows = given(batch)
    else:
        full = batch.ids.shape[1]
        rows = in_groups(together, batch, lambda some: _filled_states(given(some), full))
    lengths = batch.mask.sum(1)
    return [
        row[:length] if row.ndim == 2 else row for row, length in zip(rows, lengths, strict=True)
    ]


def _filled_states(states: Array, full: int) -> Array:
    if states.ndim < 3:
        return states
    beyond = ((0, 0), (0, full - states.shape[1]), (0, 0))
    return numpy.pad(states, beyond)
