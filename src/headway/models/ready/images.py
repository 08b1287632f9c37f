"""The common part of image models: an image file, or its pixels, becomes an array before it is
queued. Files are checked before they are decoded."""

import base64
import binascii
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy

from headway.errors import ConfigError, InputTooLarge, InvalidInput
from headway.model import Model, Tensor
from headway.models.sources.installed import require

if TYPE_CHECKING:
    from PIL import Image as Pillow

MAX_PIXELS = 50_000_000  # a large photograph; unpacked, 150 MB
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")  # few, and each with a decoder made for strangers


class ImageModel(Model[Any, Any]):
    """`image` says what clients send: `file`, the bytes of a JPEG, PNG, WebP, GIF or BMP, which
    JSON has in base64; or `pixels`, 8 bits each for red, green and blue."""

    inputs: Sequence[Tensor]

    def __init__(
        self, *, image: Literal["file", "pixels"] = "file", max_pixels: int = MAX_PIXELS
    ) -> None:
        if image not in ("file", "pixels"):
            raise ConfigError(f"{image!r} is neither file nor pixels", field="image")
        if max_pixels < 1:
            raise ConfigError(f"must be at least 1, not {max_pixels}", field="max_pixels")
        self._is_file = image == "file"
        self._max_pixels = max_pixels
        self.inputs = (
            Tensor("image", "object", (-1,))
            if self._is_file
            else Tensor("image", "uint8", (-1, -1, -1, 3)),
        )

    def setup(self) -> None:
        pillow = require("PIL.Image", "models of images", "images")
        pillow.init()  # every decoder; which of them strangers reach, `opened` says

    def samples(self) -> list[Any]:
        """An image to time the model with."""
        from PIL import Image

        image = Image.new("RGB", (640, 480), "white")
        if not self._is_file:
            return [numpy.asarray(image)]
        file = io.BytesIO()
        image.save(file, "PNG")
        return [file.getvalue()]

    def open(self, raw: Any, *, side: int | None = None) -> "Pillow.Image":
        """The image, upright, in red, green and blue. With `side`, what is far larger may come at a
        lower resolution, which saves most of the time. Raises InvalidInput, InputTooLarge."""
        if not self._is_file:
            return self._from_pixels(raw)
        return opened(raw, side=side, max_pixels=self._max_pixels)

    def _from_pixels(self, pixels: "numpy.ndarray[Any, Any]") -> "Pillow.Image":
        from PIL import Image

        height, width, _ = pixels.shape
        _check_size(width, height, self._max_pixels)
        return Image.fromarray(numpy.ascontiguousarray(pixels))


def opened(raw: bytes, *, side: int | None, max_pixels: int) -> "Pillow.Image":
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not raw:
        raise InvalidInput("input 'image' is empty")
    try:
        # Reads the head only: how large it is going to be is known before it is.
        image = Image.open(io.BytesIO(_unwrapped(raw)), formats=FORMATS)
        _check_size(*image.size, max_pixels)
        if side is not None:
            image.draft("RGB", (2 * side, 2 * side))  # no smaller; JPEG only
        return _flat(ImageOps.exif_transpose(image))
    except (InputTooLarge, MemoryError):
        raise
    except UnidentifiedImageError as error:  # its words are on our buffer
        raise _unreadable("none of these begins so") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large("it has far more pixels than a photograph", max_pixels) from error
    except Exception as error:  # decoders raise all kinds of errors for bad bytes
        raise _unreadable(str(error)) from error


def _unwrapped(raw: bytes) -> bytes:
    """The file's bytes. JSON cannot carry bytes, so there they are base64, perhaps in a data
    URL."""
    head = raw[:64]
    if head.startswith(b"data:"):
        raw = raw.partition(b",")[2]
    elif not head.isascii() or head.startswith((b"GIF8", b"BM", b"RIFF")):
        return raw
    try:
        return base64.b64decode(raw, validate=True)
    except binascii.Error:
        return raw


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise _too_large(f"it has {width} × {height} pixels", max_pixels)
    if not width * height:
        raise InvalidInput("input 'image' has no pixels")


def _unreadable(why: str) -> InvalidInput:
    known = ", ".join(FORMATS)
    return InvalidInput(f"input 'image' is not an image that can be read ({known}): {why}")


def _too_large(why: str, max_pixels: int) -> InputTooLarge:
    return InputTooLarge(
        f"input 'image' is too large: {why}; the limit is {max_pixels} pixels", limit=max_pixels
    )


def _flat(image: "Pillow.Image") -> "Pillow.Image":
    """The image without transparency, on white."""
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    paper = Image.new("RGB", image.size, "white")
    paper.paste(image, mask=image)
    return paper
