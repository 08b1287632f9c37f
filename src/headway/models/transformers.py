"""Folders saved by transformers or sentence-transformers: what they are for, their files say. They
run on torch, or on onnxruntime where all they bring is ONNX.

Weights are read from safetensors only, code in the folder is never run, and nothing is downloaded.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.models.classify import TextClassifier
from headway.models.embed import TextEmbedder
from headway.models.encoders import Encoder, OnnxEncoder, TorchEncoder
from headway.models.packed import can_pack
from headway.models.pooling import Pooling, activation_named, identity, sigmoid, softmax
from headway.models.proof import LONG
from headway.models.rerank import CosineReranker, CrossEncoder
from headway.models.sentence import Sentences, read_sentences, width_through
from headway.models.text import TextModel
from headway.models.weights import read_json

_LONGEST_PROOF = 1024
_ONNX = ("onnx/model.onnx", "model.onnx")


_HEAD = "ForSequenceClassification"
_ROBERTA = ("camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl")
# How transformers itself makes scores of logits; without a word, `TextClassifier` knows.
_PROBLEMS: Mapping[str | None, Callable[[Any], Any] | None] = {
    None: None,
    "multi_label_classification": sigmoid,
    "regression": identity,
    "single_label_classification": softmax,
}


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
    sentences = read_sentences(path)
    network = sentences.network
    settings = read_json(network / "config.json")
    _check_settings(network, settings)
    if not (network / "tokenizer.json").is_file():
        raise ConfigError(f"{network / 'tokenizer.json'}: there is no such file")
    is_head = _has_head(settings) and not sentences.is_pooled
    kind = task or _task(settings, is_head=is_head)
    made = _MAKERS.get(kind)
    if made is None:
        raise ConfigError(f"{kind!r} is not one of {sorted(_MAKERS)}", field="task")
    auto_class = f"AutoModel{_HEAD}" if is_head else "AutoModel"
    if is_head:
        _check_head(path, sentences)
    longest = _longest(network, settings, max_tokens, sentences)
    return made(
        path,
        settings,
        sentences,
        _encoder(network, auto_class, settings, device=device, threads=threads, dtype=dtype),
        max_tokens=longest,
        truncate=truncate,
        pad_id=settings.get("pad_token_id") or 0,
        lowers_case=sentences.lowers_case,
        proof_tokens=min(longest, _proof_tokens(settings)),
    )


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    kinds = {"model_type": str, "architectures": list, "pad_token_id": int}
    for name, kind in kinds.items():
        value = settings.get(name)
        if not isinstance(value, kind | type(None)):
            raise ConfigError(f"{path / 'config.json'}: {name} = {value!r} is not served")


def _has_head(settings: Mapping[str, Any]) -> bool:
    return _HEAD in " ".join(settings.get("architectures") or ())


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
    path: Path,
    settings: Mapping[str, Any],
    sentences: Sentences,
    encoder: Encoder,
    **options: Any,
) -> TextEmbedder:
    return TextEmbedder(
        encoder,
        width=_width(path, settings, sentences),
        head=_pooling(path, sentences),
        steps=sentences.steps,
        prompt=sentences.prompt,
        includes_prompt=sentences.includes_prompt,
        **options,
    )


def _classifier(
    path: Path,
    settings: Mapping[str, Any],
    sentences: Sentences,
    encoder: Encoder,
    **options: Any,
) -> TextClassifier:
    activation = _own_activation(path, settings, sentences)
    if activation is None:
        said = settings.get("problem_type")
        if said not in _PROBLEMS:
            raise ConfigError(f"{path / 'config.json'}: problem_type = {said!r} is not served")
        activation = _PROBLEMS[said]
    return TextClassifier(encoder, labels=_labels(settings), activation=activation, **options)


def _reranker(
    path: Path,
    settings: Mapping[str, Any],
    sentences: Sentences,
    encoder: Encoder,
    **options: Any,
) -> TextModel:
    if not _has_head(settings) or sentences.is_pooled:
        return CosineReranker(
            encoder,
            head=_pooling(path, sentences),
            steps=sentences.steps,
            similarity=sentences.similarity,
            prompts=sentences.prompts,
            includes_prompt=sentences.includes_prompt,
            **options,
        )
    if len(_labels(settings)) != 1:
        raise ConfigError(f"{path} has {len(_labels(settings))} classes; a reranker has one")
    activation = _own_activation(path, settings, sentences) or sigmoid
    return CrossEncoder(encoder, activation=activation, **options)


_MAKERS: dict[str, Callable[..., TextModel]] = {
    "embed": _embedder,
    "classify": _classifier,
    "rerank": _reranker,
}


def _labels(settings: Mapping[str, Any]) -> Sequence[str]:
    names = settings.get("id2label")
    if not names:
        return [f"LABEL_{number}" for number in range(settings.get("num_labels") or 2)]
    return [str(names[key]) for key in sorted(names, key=int)]


def _own_activation(
    path: Path, settings: Mapping[str, Any], sentences: Sentences
) -> Callable[[Any], Any] | None:
    """As sentence-transformers has written it down for a cross-encoder, in one of three places."""
    newer = (settings.get("sentence_transformers") or {}).get("activation_fn")
    older = settings.get("sbert_ce_default_activation_function")
    said = sentences.activation or newer or older
    return activation_named(said, str(path)) if said else None


def _check_head(path: Path, sentences: Sentences) -> None:
    """Of what else sentence-transformers lists, a network with logits has no use."""
    for name, value in (
        ("default_prompt_name", sentences.prompt),
        ("truncate_dim or modules behind the network", sentences.steps),
    ):
        if value:
            raise ConfigError(f"{path}: {name}: not served with a {_HEAD[3:]} network")


def _pooling(path: Path, sentences: Sentences) -> Pooling:
    if sentences.pooling is None:
        raise ConfigError(f"{path / 'modules.json'}: no Pooling follows the Transformer")
    return sentences.pooling


def _width(path: Path, settings: Mapping[str, Any], sentences: Sentences) -> int:
    """Of a vector."""
    names = ("hidden_size", "dim", "d_model", "emb_dim", "n_embd")  # by family
    width = next((settings[name] for name in names if settings.get(name)), None)
    if sentences.states is not None:
        width = sentences.states
    if not isinstance(width, int):
        raise ConfigError(f"{path / 'config.json'}: it has no hidden_size")
    width *= len(_pooling(path, sentences).modes)
    return width_through(sentences.steps, width, path)


def _longest(path: Path, settings: Mapping[str, Any], asked: int, sentences: Sentences) -> int:
    """The fewest tokens that any of its files allows; tokenizers without a limit say 10**30."""
    positions = settings.get("max_position_embeddings") or 0
    if settings.get("model_type") in _ROBERTA and positions > 0:
        positions -= (settings.get("pad_token_id") or 1) + 1  # theirs begin behind the padding's id
    limits: list[float | None] = [asked, sentences.max_tokens]
    limits.append(positions if positions > 0 else None)
    if (path / "tokenizer_config.json").is_file():
        longest = read_json(path / "tokenizer_config.json").get("model_max_length")
        if not isinstance(longest, int | float | type(None)):
            raise ConfigError(f"{path}: model_max_length = {longest!r} is no number of tokens")
        limits.append(longest)
    return int(min(limit for limit in limits if limit))


def _proof_tokens(settings: Mapping[str, Any]) -> int:
    """Enough that a window of attention is left behind, where the network has one."""
    names = ("sliding_window", "local_attention", "attention_window")
    found = [settings.get(name) for name in names]
    windows = [max(each) if isinstance(each, list) else each for each in found if each]
    blocks = settings.get("block_size") or 0  # BigBird's: below so many tokens it attends to all
    windows.append((5 + 2 * (settings.get("num_random_blocks") or 0)) * blocks)
    return int(max([LONG, *(window + 8 for window in windows if window <= _LONGEST_PROOF)]))
