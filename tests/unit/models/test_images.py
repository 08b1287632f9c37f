"""Images from strangers: what is read, and what is refused before it costs anything."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from headway_efficientnet import EFFICIENTNET_WEIGHTS, EfficientNet
from headway_efficientnet.checkpoint import read_checkpoint

from headway import ConfigError, InputTooLarge, InvalidInput
from headway.models.ready.images import ImageModel, opened

Image: Any = pytest.importorskip("PIL.Image")


def saved(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(raw: bytes, **options: Any) -> Any:
    return opened(raw, **{"side": None, "max_pixels": 10_000, **options})


def test_an_image_comes_as_red_green_and_blue() -> None:
    for mode in ("RGB", "L", "1", "P", "CMYK", "I;16"):
        image = Image.new(mode, (4, 3))
        kind = "JPEG" if mode == "CMYK" else "PNG"
        found = read(saved(image, kind))
        assert (found.mode, found.size) == ("RGB", (4, 3)), mode


def test_what_is_transparent_is_white() -> None:
    half = Image.new("RGBA", (1, 1), (0, 0, 0, 0))
    assert read(saved(half)).getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (1, 1))
    assert read(saved(palette, "GIF", transparency=0)).getpixel((0, 0)) == (255, 255, 255)


def test_it_is_turned_as_its_camera_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read(saved(Image.new("RGB", (4, 3)), "JPEG", exif=exif)).size == (3, 4)


def test_base64_is_read_with_and_without_a_url() -> None:
    text = base64.b64encode(saved(Image.new("RGB", (2, 1))))
    for written in (text, b"data:image/png;base64," + text):
        assert read(written).size == (2, 1)


def test_a_large_jpeg_is_not_unpacked_whole_for_a_small_network() -> None:
    raw = saved(Image.new("RGB", (4_000, 4_000)), "JPEG")
    small = read(raw, side=100, max_pixels=10**8)
    assert 200 <= min(small.size) < 4_000


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is empty"),
        (b"text", "not an image that can be read .*: none of these begins so$"),
        (b"\x89PNG\r\n\x1a\n", "not an image"),
        (saved(Image.new("RGB", (90, 90)))[:-40], "not an image"),
        (saved(Image.new("RGB", (9, 9)), "TIFF"), "not an image"),
        (base64.b64encode(b"text"), "not an image"),
        (b"data:image/png;base64,", "not an image"),
    ],
    ids=["empty", "text", "a head", "cut off", "a format of many decoders", "base64", "a url"],
)
def test_what_is_no_image_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read(raw)


@pytest.mark.parametrize("side", [101, 30_000])
def test_too_many_pixels_are_refused_before_they_are_unpacked(side: int) -> None:
    """The head says so many; there are none at all."""
    raw = bytearray(saved(Image.new("1", (8, 8)), "BMP"))
    raw[18:26] = side.to_bytes(4, "little") * 2
    with pytest.raises(InputTooLarge, match="limit is 10000 pixels") as caught:
        read(bytes(raw))
    assert caught.value.limit == 10_000


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="image: 'bytes' is neither file nor pixels"):
        ImageModel(image="bytes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_pixels: must be at least 1"):
        ImageModel(max_pixels=0)
    with pytest.raises(ConfigError, match="top_k: must be at least 1"):
        EfficientNet(top_k=0)


def test_pixels_have_the_same_limits() -> None:
    model = ImageModel(image="pixels", max_pixels=100)
    assert model.open(numpy.zeros((10, 10, 3), numpy.uint8)).size == (10, 10)
    with pytest.raises(InputTooLarge):
        model.open(numpy.zeros((11, 10, 3), numpy.uint8))
    with pytest.raises(InvalidInput, match="no pixels"):
        model.open(numpy.zeros((0, 10, 3), numpy.uint8))


# ---- a checkpoint, read without unpickling


def test_a_checkpoint_gives_its_tensors() -> None:
    if not EFFICIENTNET_WEIGHTS.is_installed:
        pytest.skip(f"needs {EFFICIENTNET_WEIGHTS.requirement}")
    [name] = EFFICIENTNET_WEIGHTS.files
    weights = read_checkpoint(EFFICIENTNET_WEIGHTS.find() / name)
    assert weights["_conv_stem.weight"].shape == (32, 3, 3, 3)
    assert weights["_fc.weight"].shape == (1000, 1280)
    numbers = [each for name, each in weights.items() if not name.endswith("num_batches_tracked")]
    assert sum(each.size for each in numbers) > 4_600_000
    assert all(numpy.isfinite(each).all() for each in numbers)


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"junk", json.dumps({}).encode()])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "net.pth").write_bytes(content)
    with pytest.raises(ConfigError, match="not the checkpoint"):
        read_checkpoint(tmp_path / "net.pth")
