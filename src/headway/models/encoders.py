"""The networks under the models of texts, on onnxruntime or on torch: padded tokens in, states or
logits out. What they mean is not known here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy

from headway.backends.onnx import device_of, likely_device, open_session
from headway.backends.torch import choose_device, import_torch
from headway.errors import ConfigError
from headway.models import packed

Array = numpy.ndarray[Any, Any]


class EncodedBatch(NamedTuple):
    """Tokens of several texts, padded: rows × length."""

    ids: Array
    mask: Array  # 1: a token, 0: padding
    types: Array  # 0: the first text of a pair, 1: the second


# From what the network gives and the mask, both as its runtime's own arrays, to one row a text. It
# runs where the network does: of the states of every token, only what is made of them is moved.
Head = Callable[[Any, Any], Any]


def all_of(given: Any, mask: Any) -> Any:
    return given


def first_of(states: Any, mask: Any) -> Any:
    """The first token's state."""
    return states[:, 0]


def mean_of(states: Any, mask: Any) -> Any:
    """The mean over the tokens, without the padding. Works on numpy's arrays and torch's alike."""
    return (mask[:, None, :] @ states)[:, 0] / mask.sum(1)[:, None]


class Encoder(Protocol):
    """Weights in a folder, and what runs them."""

    packs: bool  # it computes no padding: a batch costs what its tokens come to

    @property
    def device(self) -> str:
        """Where it runs, or is going to; empty: that is known once it is loaded."""
        ...

    def find(self) -> Path:
        """The folder, checked. Raises ConfigError."""
        ...

    def load(self) -> None: ...

    def files(self) -> list[Path]: ...

    def run(self, batch: EncodedBatch, head: Head) -> Array:
        """One row of float32 for each text."""
        ...


class OnnxEncoder:
    """An .onnx file: the first of `names` that the folder has. `output`: of several, this one."""

    packs = False

    def __init__(
        self,
        find: Callable[[], Path],
        *,
        names: Sequence[str] = ("onnx/model.onnx", "model.onnx"),
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

    def find(self) -> Path:
        if self._folder is None:
            self._folder = self._find()
        return self._folder

    def load(self) -> None:
        asked = self._device_asked
        self._session = open_session(self._file(), device=asked, threads=self._threads)
        self._device = device_of(self._session, asked)
        self._inputs = {each.name for each in self._session.get_inputs()}

    @property
    def device(self) -> str:
        return likely_device(self._device_asked) if self._device is None else self._device

    def files(self) -> list[Path]:
        file = self._file()
        beside = sorted(file.parent.glob(f"{file.name}[_.]data"))
        return [each for each in (file, *beside, self.find() / "tokenizer.json") if each.is_file()]

    def run(self, batch: EncodedBatch, head: Head) -> Array:
        feeds = {
            "input_ids": batch.ids,
            "attention_mask": batch.mask,
            "token_type_ids": batch.types,
        }
        given = self._session.run(
            self._output, {name: array for name, array in feeds.items() if name in self._inputs}
        )[0]
        row: Array = head(given, batch.mask.astype(given.dtype))
        return row.astype(numpy.float32, copy=False)

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
            raise ConfigError(f"{dtype!r} is none of float32, bfloat16, float16", field="dtype")
        self.packs = packs
        self._device = device
        self._dtype = dtype or "float32"
        self._path = path
        self._auto_class = auto_class
        self._device_asked = device
        self._threads = threads

    @property
    def device(self) -> str:
        return self._device

    def find(self) -> Path:
        return self._path

    def load(self) -> None:
        torch = self._torch = import_torch()
        try:
            import transformers
        except ImportError as error:
            raise ConfigError(
                "this model needs transformers: pip install 'headway[torch]'"
            ) from error
        torch.set_num_threads(self._threads)
        self._device = choose_device(torch, self._device_asked)
        try:
            model = getattr(transformers, self._auto_class).from_pretrained(
                str(self._path),
                dtype=getattr(torch, self._dtype),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        except Exception as error:  # transformers' own, of many kinds
            raise ConfigError(f"{self._path}: transformers cannot load it: {error}") from error
        self._model = model.eval().to(self._device)
        self._has_types = getattr(model.config, "type_vocab_size", 0) > 1
        if self.packs:
            packed.use(self._model)

    def files(self) -> list[Path]:
        return [each for each in self._path.rglob("*") if each.is_file()]

    def run(self, batch: EncodedBatch, head: Head) -> Array:
        torch = self._torch
        if self.packs:
            return self._run_packed(batch, head)
        with torch.inference_mode():
            ids, mask, types = (torch.as_tensor(each, device=self._device) for each in batch)
            more = {"token_type_ids": types} if self._has_types else {}
            given = self._model(input_ids=ids, attention_mask=mask, **more)[0]
            row: Array = head(given, mask.to(given.dtype)).float().cpu().numpy()
        return row

    def _run_packed(self, batch: EncodedBatch, head: Head) -> Array:
        torch = self._torch
        types = batch.types if self._has_types else None
        with torch.inference_mode():
            states = packed.run(self._model, batch.ids, batch.mask, types)
            mask = torch.as_tensor(batch.mask, device=self._device).to(states.dtype)
            row: Array = head(states, mask).float().cpu().numpy()
        return row
