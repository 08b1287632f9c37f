"""Reading text in images, with RapidOCR: networks of PaddlePaddle that find lines, their direction
and their characters, on onnxruntime. They come in its package, and are checked before they load.

Each image of a batch is read on its own: its lines have their own sizes, and on a CPU
more of them at once are no faster.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypedDict

import numpy

from headway.errors import ConfigError
from headway.model import Tensor
from headway.models.ready.images import MAX_PIXELS, ImageModel
from headway.models.sources.weights import PackagedWeights

Array = numpy.ndarray[Any, Any]
_DETECTOR = "PP-OCRv6_det_small.onnx"
_DIRECTION = "ch_ppocr_mobile_v2.0_cls_mobile.onnx"
_READER = "PP-OCRv6_rec_small.onnx"
_SMALLEST_SIDE = 32
_LARGEST_SIDE = 2000  # of what is kept of an image: letters of a whole page are still 10 high

RAPIDOCR_WEIGHTS = PackagedWeights(
    package="rapidocr",
    version="3.10.0",
    module="rapidocr",
    folder="models",
    files={
        _DETECTOR: "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
        _DIRECTION: "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        _READER: "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    },
    size_mb=27,
    licence="Apache-2.0",
)


class TextLine(TypedDict):
    """A line of text. The box goes around it from its upper left corner, in pixels (x, y)."""

    text: str
    score: float
    box: list[list[float]]


class TextPage(TypedDict):
    """The text of an image, from top to bottom. In v2, `lines` is JSON."""

    text: str
    lines: Annotated[list[TextLine], Tensor("lines", "object", (-1,))]


class _Image(NamedTuple):
    pixels: Array
    scale: float  # of what the caller sent to what is kept


class RapidOCR(ImageModel):
    """Options: `threads` (of one image), `detect_side` (a larger image is made that small to look
    for text; it is read as it is), `image` (`file` or `pixels`: what clients send), `max_pixels`
    (of what is unpacked at all)."""

    # An unpacked page may take 12 MB and a second or more: a long queue only makes callers wait.
    batcher_options: ClassVar[Mapping[str, Any]] = {"max_queue": 64, "max_batch_size": 4}

    def __init__(
        self,
        *,
        threads: int = 1,
        detect_side: int = 1280,
        image: Literal["file", "pixels"] = "file",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(image=image, max_pixels=max_pixels)
        if detect_side < 32:
            raise ConfigError(f"must be at least 32, not {detect_side}", field="detect_side")
        self._threads = threads
        self._detect_side = detect_side

    def setup(self) -> None:
        super().setup()
        self._folder = RAPIDOCR_WEIGHTS.find()

    def load(self) -> None:
        import rapidocr

        self._engine: Any = rapidocr.RapidOCR(
            params={
                "Global.log_level": "error",
                "Det.model_path": str(self._folder / _DETECTOR),
                "Det.limit_type": "max",
                "Det.limit_side_len": self._detect_side,
                "Cls.model_path": str(self._folder / _DIRECTION),
                "Rec.model_path": str(self._folder / _READER),
                "EngineConfig.onnxruntime.intra_op_num_threads": self._threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )

    def files(self) -> list[Path]:
        return [self._folder / name for name in RAPIDOCR_WEIGHTS.files]

    def prepare(self, raw: bytes) -> _Image:
        image = self.open(raw)
        scale = min(1.0, _LARGEST_SIDE / max(image.size))
        image.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
        pixels = numpy.asarray(image)
        missing = [(0, max(0, _SMALLEST_SIDE - side)) for side in pixels.shape[:2]]
        # White paper around it: rapidocr would enlarge a line of one pixel thirty times.
        return _Image(numpy.pad(pixels, (*missing, (0, 0)), constant_values=255), scale)

    def predict(self, items: list[_Image]) -> list[TextPage]:
        return [self._read(item) for item in items]

    def _read(self, image: _Image) -> TextPage:
        found = self._engine(image.pixels[:, :, ::-1])  # blue, green, red: as OpenCV has it
        if found.txts is None:
            return {"text": "", "lines": []}
        lines: list[TextLine] = [
            {"text": text, "score": float(score), "box": (box / image.scale).round(1).tolist()}
            for text, score, box in zip(found.txts, found.scores, found.boxes, strict=True)
        ]
        return {"text": "\n".join(found.txts), "lines": lines}
