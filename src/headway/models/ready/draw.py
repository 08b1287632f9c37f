"""Image generation: a folder saved by diffusers, a prompt in, a PNG out.

Prompts with the same size, steps and guidance are drawn together: every step of denoising
is one call for all of them. Each has noise of its own, from its own seed, so that what is drawn
does not depend on the company. Weights are read from safetensors only, code in the folder is never
run, and nothing is downloaded.
"""

import inspect
import io
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy

from headway.backends.torch import choose_device, import_torch
from headway.errors import ConfigError, InputTooLarge, InvalidInput
from headway.files import read_json
from headway.model import Model, Tensor
from headway.models.sources.installed import require

Array = numpy.ndarray[Any, Any]
INDEX = "model_index.json"
_LIBRARIES = frozenset(["diffusers", "transformers"])
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
MAX_SEED = 2**63 - 1
_MAX_STEPS = 500
_MAX_PROMPT = 4000  # characters; text encoders read fewer


@dataclass(frozen=True, slots=True)
class Drawing:
    """An item of a batch."""

    prompt: str
    seed: int
    cost: int  # pixels × steps


class DiffusionModel(Model[Drawing, Array]):
    """Options: `device`, `threads`, `steps` (of denoising, unless a caller says), `max_pixels`
    (of one image)."""

    batch_parameters: ClassVar[Sequence[str]] = ("size", "steps", "guidance")
    inputs: ClassVar[Sequence[Tensor]] = (Tensor("prompt", "object", (-1,)),)
    outputs: ClassVar[Sequence[Tensor]] = (Tensor("image", "object", (-1,)),)

    def __init__(
        self,
        path: Path,
        *,
        device: str = "",
        threads: int = 1,
        steps: int = 25,
        max_pixels: int = 1024 * 1024,
    ) -> None:
        if not 1 <= steps <= _MAX_STEPS:
            raise ConfigError(f"must be from 1 to {_MAX_STEPS}, not {steps}", field="steps")
        self._path = path
        self._device_asked = device
        self._threads = threads
        self._steps = steps
        self._max_pixels = max_pixels
        index = read_json(path / INDEX)
        _check_parts(path, index)
        self._shape = _Shape.of(path, index)
        self._lock = threading.Lock()  # a pipeline counts its steps in itself

    def setup(self) -> None:
        require("PIL.Image", "models that draw", "diffusion")

    def load(self) -> None:
        torch = self._torch = import_torch()
        diffusers = require("diffusers", "models that draw", "diffusion")
        torch.set_num_threads(self._threads)
        device = choose_device(torch, self._device_asked)
        try:
            pipeline = diffusers.DiffusionPipeline.from_pretrained(
                str(self._path),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
        except Exception as error:  # of many kinds: diffusers', transformers', safetensors'
            raise ConfigError(f"{self._path}: diffusers cannot load it: {error}") from error
        pipeline.set_progress_bar_config(disable=True)
        self._pipeline = pipeline.to(device)
        self._takes = set(inspect.signature(pipeline.__call__).parameters)

    def files(self) -> list[Path]:
        return [each for each in self._path.rglob("*") if each.is_file()]

    def samples(self) -> list[str]:
        """A prompt to time the model with."""
        return ["a sample"]

    def prepare(
        self,
        raw: str,
        *,
        seed: int | None = None,
        size: str = "",
        steps: int = 0,
        guidance: float = 0.0,
    ) -> Drawing:
        """Check everything here: a mistake must not reach the batch's other items."""
        if len(raw) > _MAX_PROMPT:
            raise InputTooLarge(
                f"prompt: {len(raw)} characters; at most {_MAX_PROMPT}", limit=_MAX_PROMPT
            )
        if seed is not None and not 0 <= seed <= MAX_SEED:
            raise InvalidInput(f"seed: from 0 to {MAX_SEED} is expected, not {seed}")
        if not 0 <= steps <= _MAX_STEPS:
            raise InvalidInput(f"steps: from 1 to {_MAX_STEPS} is expected, not {steps}")
        if not 0 <= guidance <= 100:
            raise InvalidInput(f"guidance: from 0 to 100 is expected, not {guidance}")
        width, height = self._shape.read(size, max_pixels=self._max_pixels)
        chosen = secrets.randbits(32) if seed is None else seed
        return Drawing(raw, chosen, width * height * (steps or self._steps))

    def size(self, item: Drawing) -> int:
        return item.cost

    def predict(
        self, items: list[Drawing], *, size: str = "", steps: int = 0, guidance: float = 0.0
    ) -> list[Array]:
        torch = self._torch
        width, height = self._shape.read(size, max_pixels=self._max_pixels)
        # On the CPU, so that a seed means the same picture on every device.
        noises = [torch.Generator("cpu").manual_seed(item.seed) for item in items]
        options: dict[str, Any] = {
            "prompt": [item.prompt for item in items],
            "batch_size": len(items),
            "width": width,
            "height": height,
            "guidance_scale": guidance or None,
        }
        taken = {
            name: value
            for name, value in options.items()
            if name in self._takes and value is not None
        }
        with self._lock, torch.inference_mode():
            drawn = self._pipeline(
                **taken,
                generator=noises,
                num_inference_steps=steps or self._steps,
                output_type="np",
            )
        return [(image * 255).round().astype(numpy.uint8) for image in drawn.images]

    def finish(self, result: Array) -> bytes:
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(result[..., 0] if result.shape[-1] == 1 else result).save(file, "PNG")
        return file.getvalue()


@dataclass(frozen=True, slots=True)
class _Shape:
    """The sizes that a model can draw."""

    width: int
    height: int
    multiple: int  # of both; 0: only this one size

    @classmethod
    def of(cls, path: Path, index: Mapping[str, Any]) -> "_Shape":
        part = next((name for name in ("unet", "transformer") if index.get(name)), None)
        if part is None:
            raise ConfigError(f"{path / INDEX}: it has neither a unet nor a transformer")
        side = read_json(path / part / "config.json").get("sample_size")
        if isinstance(side, int):
            side = [side, side]
        if not (isinstance(side, list) and len(side) == 2):
            raise ConfigError(f"{path / part / 'config.json'}: it has no sample_size")
        if not index.get("vae"):
            return cls(side[1], side[0], 0)
        blocks = read_json(path / "vae" / "config.json").get("block_out_channels", [0])
        scale = 2 ** (len(blocks) - 1)
        return cls(side[1] * scale, side[0] * scale, max(8, scale))

    def read(self, size: str, *, max_pixels: int) -> tuple[int, int]:
        """Width and height of `512x512`; empty: as the model was made. Raises RequestError."""
        if size in ("", "auto"):
            return self.width, self.height
        found = _SIZE.fullmatch(size)
        if found is None:
            raise InvalidInput(f"size: WIDTHxHEIGHT is expected, such as {self}, not {size!r}")
        width, height = int(found[1]), int(found[2])
        if not self.multiple and (width, height) != (self.width, self.height):
            raise InvalidInput(f"size: {size}; this model draws {self} only")
        if width * height > max_pixels:
            raise InputTooLarge(
                f"size: {size} has more than {max_pixels} pixels (max_pixels)", limit=max_pixels
            )
        multiple = self.multiple or 1
        if not (width and height) or width % multiple or height % multiple:
            raise InvalidInput(f"size: {size}; width and height must be multiples of {multiple}")
        return width, height

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def _check_parts(path: Path, index: Mapping[str, Any]) -> None:
    """Only classes of diffusers and transformers are loaded, and only from safetensors."""
    if not isinstance(index.get("_class_name"), str):  # a pair names code in the folder
        raise ConfigError(f"{path / INDEX}: _class_name is not the name of a pipeline")
    for name, kind in index.items():
        if name.startswith("_") or not isinstance(kind, list):
            continue
        if kind[0] is not None and kind[0] not in _LIBRARIES:
            raise ConfigError(
                f"{path / INDEX}: {name} comes from {kind[0]!r}; only parts of "
                f"{' and '.join(sorted(_LIBRARIES))} are loaded"
            )
    if not list(path.glob("*/*.safetensors")):
        raise ConfigError(f"{path} has no safetensors; pickled weights (*.bin) are not read")
