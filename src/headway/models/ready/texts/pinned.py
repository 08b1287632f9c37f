"""Models of texts on a BERT in a pinned package: their options, the same for every task."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from headway.errors import ConfigError
from headway.models.ready.texts.encoders import ONNX_FILES, OnnxEncoder
from headway.models.ready.texts.text import TextModel
from headway.models.sources.weights import PackagedWeights, find_weights

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
