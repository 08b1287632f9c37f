"""Text classification: a text in, its classes out, likeliest first. The one at hand finds prompt
injections: a MiniLM, on onnxruntime and tokenizers, with weights from a pinned package.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, TypedDict

import numpy

from headway.errors import ConfigError
from headway.model import Tensor
from headway.models.ready.embed import check_width
from headway.models.ready.texts.encoders import Encoder
from headway.models.ready.texts.pooling import all_of, sigmoid, softmax
from headway.models.ready.texts.text import PinnedNetwork, TextModel
from headway.models.sources.weights import PackagedWeights

Array = numpy.ndarray[Any, Any]

CLONEGUARD_WEIGHTS = PackagedWeights(
    package="cloneguard",
    version="0.6.0",
    module="cloneguard",
    folder="model",
    files={
        "mini_semantic.onnx": "e7fb93add94c4eb3c7e094bc3ce466573aad3ac7433fbab29aa19a694c40edcf",
        "tokenizer.json": "da0e79933b9ed51798a3ae27893d3c5fa4a201126cef75586296df9b4d2c62a0",
    },
    size_mb=86,
    licence="Apache-2.0",
)


class Classes(TypedDict):
    """The likeliest classes, best first."""

    labels: list[str]
    scores: list[float]


class ClassRanking:
    """Ranks the classes: the best `top_k`, or all if there are fewer."""

    def __init__(self, labels: Sequence[str], top_k: int) -> None:
        if top_k < 1:
            raise ConfigError(f"must be at least 1, not {top_k}", field="top_k")
        self._labels = labels
        self._count = min(top_k, len(labels))
        self.outputs = (
            Tensor("labels", "object", (-1, self._count)),
            Tensor("scores", "float32", (-1, self._count)),
        )

    def best(self, scores: Array) -> Classes:
        order = numpy.argsort(-scores, kind="stable")[: self._count]
        return {
            "labels": [self._labels[index] for index in order],
            "scores": scores[order].tolist(),
        }


class TextClassifier(TextModel):
    """Logits become scores: `activation` None: probabilities, which together are 1; of one class,
    its own."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        labels: Sequence[str],
        top_k: int = 5,
        activation: Callable[[Array], Array] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(encoder, **options)
        self._labels = len(labels)
        self._activation = activation or (sigmoid if len(labels) == 1 else softmax)
        self._ranking = ClassRanking(labels, top_k)
        self.outputs = self._ranking.outputs

    def predict(self, items: list[list[int]]) -> list[Array]:
        return list(self._activation(self._encoder.run(self._batch(items), all_of)))

    def finish(self, result: Array) -> Classes:
        return self._ranking.best(result)

    def _check_width(self) -> None:
        item = [*self._first, *self._last] or [0]
        check_width(len(self.predict([item])[0]), self._labels)


class CloneGuard(PinnedNetwork, TextClassifier):
    """Is a text safe to hand to a language model, or does it try to give it orders?"""

    pinned = CLONEGUARD_WEIGHTS
    names = ("mini_semantic.onnx",)
    output = "logits"
    task = MappingProxyType({"labels": ("safe", "injection")})
