"""Folders saved by transformers or sentence-transformers: what they are for, their files say. They
run on torch, or on onnxruntime where all they bring is ONNX.

Weights are read from safetensors only, code in the folder is never run, and nothing is downloaded.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.models.classify import TextClassifier, sigmoid
from headway.models.embed import TextEmbedder
from headway.models.encoders import Encoder, Head, OnnxEncoder, TorchEncoder, first_of, mean_of
from headway.models.packed import can_pack
from headway.models.rerank import CosineReranker, CrossEncoder
from headway.models.text import TextModel
from headway.models.weights import read_json

_ONNX = ("onnx/model.onnx", "model.onnx")


def model_in(
    path: Path,
    *,
    device: str = "",
    threads: int = 1,
    task: str = "",
    max_tokens: int = 512,
    truncate: bool = False,
    dtype: str = "",
) -> TextModel:
    """The model for what the folder is: `task` is embed, classify or rerank, empty: as its files
    say. Longer texts than `max_tokens`, or than the folder allows, are refused or cut. `dtype`:
    what it computes in (float32, bfloat16, float16); in the short ones it may take texts packed."""
    settings = read_json(path / "config.json")
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(f"{path / 'tokenizer.json'}: there is no such file")
    is_head = "ForSequenceClassification" in " ".join(settings.get("architectures") or ())
    kind = task or _task(settings, is_head=is_head)
    made = _MAKERS.get(kind)
    if made is None:
        raise ConfigError(f"{kind!r} is not one of {sorted(_MAKERS)}", field="task")
    auto_class = "AutoModelForSequenceClassification" if is_head else "AutoModel"
    return made(
        path,
        settings,
        _encoder(path, auto_class, settings, device=device, threads=threads, dtype=dtype),
        max_tokens=_longest(path, settings, max_tokens),
        truncate=truncate,
        pad_id=settings.get("pad_token_id") or 0,
    )


def _task(settings: Mapping[str, Any], *, is_head: bool) -> str:
    """One class is no choice: such a model gives how well two texts fit."""
    if not is_head:
        return "embed"
    return "rerank" if len(_labels(settings)) == 1 else "classify"


def _encoder(
    path: Path,
    auto_class: str,
    settings: Mapping[str, Any],
    *,
    device: str,
    threads: int,
    dtype: str,
) -> Encoder:
    if list(path.glob("*.safetensors")):
        # A head of its own looks at the first token of a row, not of each text in it.
        packs = auto_class == "AutoModel" and can_pack(settings)
        return TorchEncoder(
            path, auto_class, device=device, threads=threads, dtype=dtype, packs=packs
        )
    if any((path / name).is_file() for name in _ONNX):
        if dtype:
            raise ConfigError(
                "an ONNX file computes in the type it was exported with", field="dtype"
            )
        return OnnxEncoder(lambda: path, names=_ONNX, device=device, threads=threads)
    raise ConfigError(
        f"{path} has no safetensors and no model.onnx; pickled weights (*.bin) are not read"
    )


# ---- the tasks


def _embedder(
    path: Path, settings: Mapping[str, Any], encoder: Encoder, **options: Any
) -> TextEmbedder:
    width = settings.get("hidden_size") or settings.get("dim")  # DistilBERT's word
    if not isinstance(width, int):
        raise ConfigError(f"{path / 'config.json'}: it has no hidden_size")
    return TextEmbedder(encoder, width=width, head=_pooling(path), **options)


def _classifier(
    path: Path, settings: Mapping[str, Any], encoder: Encoder, **options: Any
) -> TextClassifier:
    return TextClassifier(encoder, labels=_labels(settings), **options)


def _reranker(
    path: Path, settings: Mapping[str, Any], encoder: Encoder, **options: Any
) -> TextModel:
    if "ForSequenceClassification" not in " ".join(settings.get("architectures") or ()):
        return CosineReranker(encoder, head=_pooling(path), **options)
    if len(_labels(settings)) != 1:
        raise ConfigError(f"{path} has {len(_labels(settings))} classes; a reranker has one")
    return CrossEncoder(encoder, activation=_activation(settings), **options)


_MAKERS: dict[str, Callable[..., TextModel]] = {
    "embed": _embedder,
    "classify": _classifier,
    "rerank": _reranker,
}


def _labels(settings: Mapping[str, Any]) -> Sequence[str]:
    names = settings.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    return [str(names[key]) for key in sorted(names, key=int)]


def _activation(settings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """As sentence-transformers has written it down, under one of two names; else a sigmoid."""
    newer = settings.get("sentence_transformers") or {}
    said = newer.get("activation_fn") or settings.get("sbert_ce_default_activation_function") or ""
    return (lambda logits: logits) if said.endswith("Identity") else sigmoid


def _pooling(path: Path) -> Head:
    """As sentence-transformers has written it down; else the mean."""
    file = path / "1_Pooling" / "config.json"
    if not file.is_file():
        return mean_of
    said = read_json(file)
    if said.get("pooling_mode_cls_token") or said.get("pooling_mode") == "cls":
        return first_of
    if said.get("pooling_mode_mean_tokens") or said.get("pooling_mode") == "mean":
        return mean_of
    raise ConfigError(f"{file}: pooling by mean or by the first token is expected")


def _longest(path: Path, settings: Mapping[str, Any], asked: int) -> int:
    """The fewest tokens that any of its files allows; tokenizers without a limit say 10**30."""
    limits = [asked, settings.get("max_position_embeddings")]
    for name, key in (
        ("tokenizer_config.json", "model_max_length"),
        ("sentence_bert_config.json", "max_seq_length"),
    ):
        if (path / name).is_file():
            limits.append(read_json(path / name).get(key))
    return int(min(limit for limit in limits if limit))
