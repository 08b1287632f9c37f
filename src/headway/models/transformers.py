"""Folders saved by transformers or sentence-transformers: texts to vectors, or to class scores.

Weights are read from safetensors only, code in the folder is never run, and nothing is downloaded.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy

from headway.backends.torch import choose_device, import_torch
from headway.errors import ConfigError, InvalidInput
from headway.model import Model, Tensor
from headway.models.embed import Embedding

Array = numpy.ndarray[Any, Any]
Pooling = Literal["mean", "cls"]
_SAMPLE_WORDS = (3, 30, 126, 254)


def model_in(path: Path, *, device: str, threads: int, task: str, max_tokens: int) -> "TextModel":
    """The model for what the folder is: `task` is embed or classify, empty: as its files say."""
    settings = _json(path / "config.json")
    if not list(path.glob("*.safetensors")):
        raise ConfigError(f"{path} has no safetensors; pickled weights (*.bin) are not read")
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(f"{path / 'tokenizer.json'}: there is no such file")
    names = " ".join(settings.get("architectures") or ())
    kind = task or ("classify" if "ForSequenceClassification" in names else "embed")
    kinds: dict[str, type[TextModel]] = {"embed": TextEmbedder, "classify": TextClassifier}
    if kind not in kinds:
        raise ConfigError(f"{kind!r} is not one of {sorted(kinds)}", field="task")
    return kinds[kind](path, settings, device=device, threads=threads, max_tokens=max_tokens)


class TextModel(Model[list[int], Array]):
    """What both have in common: a text becomes token ids, a batch of them one call of torch."""

    auto_class: str
    inputs: Sequence[Tensor] = (Tensor("text", "object", (-1,)),)
    outputs: Sequence[Tensor] = ()

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        *,
        device: str,
        threads: int,
        max_tokens: int,
    ) -> None:
        self._path = path
        self._settings = settings
        self._device_asked = device
        self._threads = threads
        longest = settings.get("max_position_embeddings") or max_tokens
        self._max_tokens = min(max_tokens, int(longest))

    def setup(self) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError(
                "this model needs tokenizers: pip install 'headway[torch]'"
            ) from error
        tokenizer = Tokenizer.from_file(str(self._path / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self._max_tokens)
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.get_vocab_size()

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
            model = getattr(transformers, self.auto_class).from_pretrained(
                str(self._path),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        except Exception as error:  # transformers' own, of many kinds
            raise ConfigError(f"{self._path}: transformers cannot load it: {error}") from error
        self._model = model.eval().to(self._device)

    def files(self) -> list[Path]:
        return [each for each in self._path.rglob("*") if each.is_file()]

    def samples(self) -> list[str]:
        """Texts to time the model with."""
        return [" ".join(["hello"] * min(words, self._max_tokens)) for words in _SAMPLE_WORDS]

    def prepare(self, raw: str | list[int]) -> list[int]:
        if isinstance(raw, str):
            ids: list[int] = self._tokenizer.encode(raw).ids
            return ids
        if not raw or not all(type(each) is int and 0 <= each < self._vocabulary for each in raw):
            raise InvalidInput(
                f"input 'text': a text, or token ids from 0 to {self._vocabulary - 1}, is expected"
            )
        return raw[: self._max_tokens]

    def size(self, item: list[int]) -> int:
        return len(item)

    def _run(self, items: list[list[int]]) -> tuple[Any, Any]:
        """What the model gives, and the mask of the real tokens."""
        torch = self._torch
        longest = max(map(len, items))
        ids = torch.zeros((len(items), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, item in enumerate(items):
            ids[row, : len(item)] = torch.tensor(item)
            mask[row, : len(item)] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        return self._model(input_ids=ids, attention_mask=mask), mask


class TextEmbedder(TextModel):
    """A text becomes a vector of length 1: the mean of its tokens' states, or the first's."""

    auto_class = "AutoModel"

    def __init__(self, path: Path, settings: Mapping[str, Any], **options: Any) -> None:
        super().__init__(path, settings, **options)
        width = settings.get("hidden_size")
        if not isinstance(width, int):
            raise ConfigError(f"{path / 'config.json'}: it has no hidden_size")
        self.outputs = (Tensor("embedding", "float32", (-1, width)),)
        self._pooling = _pooling(path)

    def predict(self, items: list[list[int]]) -> list[tuple[Array, int]]:  # type: ignore[override]
        torch = self._torch
        with torch.inference_mode():
            given, mask = self._run(items)
            states = given.last_hidden_state
            if self._pooling == "cls":
                pooled = states[:, 0]
            else:
                weights = mask.unsqueeze(-1).to(states.dtype)
                pooled = (states * weights).sum(1) / weights.sum(1)
            vectors = torch.nn.functional.normalize(pooled, dim=1).float().cpu().numpy()
        return [(row, len(item)) for row, item in zip(vectors, items, strict=True)]

    def finish(self, result: tuple[Array, int]) -> Embedding:
        embedding = result[0].view(Embedding)
        embedding.tokens = result[1]
        return embedding


class TextClassifier(TextModel):
    """A text becomes a probability for each class; their names are the output's labels."""

    auto_class = "AutoModelForSequenceClassification"

    def __init__(self, path: Path, settings: Mapping[str, Any], **options: Any) -> None:
        super().__init__(path, settings, **options)
        names = settings.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        self.labels = {"scores": [names[key] for key in sorted(names, key=int)]}
        self.outputs = (Tensor("scores", "float32", (-1, len(self.labels["scores"]))),)

    def predict(self, items: list[list[int]]) -> list[Array]:
        torch = self._torch
        with torch.inference_mode():
            logits = self._run(items)[0].logits
            is_one = logits.shape[1] == 1
            scores = torch.sigmoid(logits) if is_one else torch.softmax(logits, dim=1)
            return list(scores.float().cpu().numpy())


def _pooling(path: Path) -> Pooling:
    """As sentence-transformers has written it down; else the mean."""
    file = path / "1_Pooling" / "config.json"
    if not file.is_file():
        return "mean"
    said = _json(file)
    if said.get("pooling_mode_cls_token"):
        return "cls"
    if said.get("pooling_mode_mean_tokens"):
        return "mean"
    raise ConfigError(f"{file}: pooling by mean or by the first token is expected")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: an object is expected")
    return found
