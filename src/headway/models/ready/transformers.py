"""Folders saved by transformers or sentence-transformers: what they are for, their files say. They
run on torch, or on onnxruntime where all they bring is ONNX.

Weights are read from safetensors only, code in the folder is never run, and nothing is downloaded.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.files import read_json, read_optional_json
from headway.models.ready.classify import TextClassifier
from headway.models.ready.embed import TextEmbedder
from headway.models.ready.rerank import CosineReranker, CrossEncoder
from headway.models.ready.texts.encoders import ONNX_FILES, Encoder, OnnxEncoder, TorchEncoder
from headway.models.ready.texts.opening import ENCODERS
from headway.models.ready.texts.packed import can_pack
from headway.models.ready.texts.pooling import Pooling, activation_named, identity, sigmoid, softmax
from headway.models.ready.texts.proof import LONG
from headway.models.ready.texts.sentence import read_sentences, width_through
from headway.models.ready.texts.text import TextModel

_LONGEST_PROOF = 1024
_HEAD = "ForSequenceClassification"
_OTHER_HEAD = re.compile(f"(?!.*{_HEAD}).*For[A-Z]")  # BertForTokenClassification
_BY_VECTORS = ("embed", "rerank")  # tasks that an encoder without its head can do
_OF_IMAGES = ("image_size", "num_channels", "vision_config")  # in config.json
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
    """The model in the folder, for `task`: embed, classify or rerank; if empty, what its files say.

    Texts longer than `max_tokens`, or than the folder allows, are refused, or cut if `truncate`.
    `dtype` is what it computes in: float32, bfloat16 or float16. In the two short ones, several
    texts may share a row.
    """
    makers = {"embed": _embedder, "classify": _classifier, "rerank": _reranker}
    if task and task not in makers:
        raise ConfigError(f"{task!r} is not one of {sorted(makers)}", field="task")
    folder = _Folder(path)
    if task not in _BY_VECTORS:  # nobody asked for its encoder alone: its head must be served
        folder.check_head()
    kind = task or folder.task()
    longest = folder.longest(max_tokens)
    return makers[kind](
        folder,
        folder.encoder(device=device, threads=threads, dtype=dtype),
        max_tokens=longest,
        truncate=truncate,
        pad_id=folder.settings.get("pad_token_id") or 0,
        lowers_case=folder.sentences.lowers_case,
        proof_tokens=min(longest, folder.proof_tokens()),
    )


# ---- the tasks


def _embedder(folder: "_Folder", encoder: Encoder, **options: Any) -> TextModel:
    sentences = folder.sentences
    return TextEmbedder(
        encoder,
        width=folder.width(),
        head=folder.pooling(),
        steps=sentences.steps,
        prompt=sentences.prompt,
        prompts=sentences.prompts,
        includes_prompt=sentences.includes_prompt,
        **options,
    )


def _classifier(folder: "_Folder", encoder: Encoder, **options: Any) -> TextModel:
    activation = folder.activation()
    if activation is None:
        problem = folder.settings.get("problem_type")
        if problem not in _PROBLEMS:
            raise ConfigError(f"{folder.config}: problem_type = {problem!r} is not served")
        activation = _PROBLEMS[problem]
    return TextClassifier(encoder, labels=folder.labels(), activation=activation, **options)


def _reranker(folder: "_Folder", encoder: Encoder, **options: Any) -> TextModel:
    sentences, labels = folder.sentences, folder.labels()
    if not folder.is_head:
        return CosineReranker(
            encoder,
            head=folder.pooling(),
            steps=sentences.steps,
            similarity=sentences.similarity,
            prompts=sentences.prompts,
            includes_prompt=sentences.includes_prompt,
            **options,
        )
    if len(labels) != 1:
        raise ConfigError(f"{folder.path} has {len(labels)} classes; a reranker has one")
    return CrossEncoder(encoder, activation=folder.activation() or sigmoid, **options)


# ---- what the files say


class _Folder:
    """Raises ConfigError for what is not served."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"  # as users know it
        self.sentences = read_sentences(path)
        self._network = self.sentences.network
        self.settings = read_json(self._network / "config.json")
        self._check_settings()
        self._kinds = [str(each) for each in self.settings.get("architectures") or ()]
        tokenizer = self._network / "tokenizer.json"
        if not tokenizer.is_file():
            self._check_reads_texts()
            raise ConfigError(f"{tokenizer}: there is no such file")
        self.is_head = _HEAD in " ".join(self._kinds) and not self.sentences.is_pooled
        if self.is_head:  # it ends with logits
            self._check_sentences()

    def _check_settings(self) -> None:
        kinds = {"model_type": str, "architectures": list, "pad_token_id": int}
        for name, kind in kinds.items():
            value = self.settings.get(name)
            if not isinstance(value, kind | type(None)):
                raise ConfigError(f"{self.config}: {name} = {value!r} is not served")

    def _check_reads_texts(self) -> None:
        """Refuse a model of images or sound, which has no tokenizer to lack."""
        prepares_files = (self._network / "preprocessor_config.json").is_file()
        if self._takes_images() or prepares_files:
            called = ", ".join(self._kinds) or self.settings.get("model_type") or "the model"
            raise ConfigError(
                f"{self.config}: {called} is not supported; a folder of transformers may be a "
                "language model, an encoder of texts or Whisper"
            )

    def _takes_images(self) -> bool:
        return any(self.settings.get(name) for name in _OF_IMAGES)

    def check_head(self) -> None:
        """Refuse a network that was trained for another task, or does not say for which, unless
        sentence-transformers' files say that it embeds. Raises ConfigError."""
        if not self._kinds and not self.sentences.has_pooling:
            raise ConfigError(
                f"{self.config}: no architectures say what the model computes; "
                "--options task=embed serves it as an encoder"
            )
        head = next((each for each in self._kinds if _OTHER_HEAD.match(each)), None)
        if head is None or self.sentences.has_pooling:
            return
        is_half = self.settings.get("is_encoder_decoder")
        can_embed = not is_half or self.settings.get("model_type") in ENCODERS
        advice = "; --options task=embed serves its encoder without its head"
        if not can_embed or self._takes_images():
            advice = ""
        raise ConfigError(f"{self.config}: {head} is not served{advice}")

    def _check_sentences(self) -> None:
        """Refuse sentence-transformers' settings that a network with logits cannot use."""
        for name, value in (
            ("default_prompt_name", self.sentences.prompt),
            ("truncate_dim or modules behind the network", self.sentences.steps),
        ):
            if value:
                raise ConfigError(f"{self.path}: {name}: not served with a {_HEAD[3:]} network")

    def task(self) -> str:
        """The task of the folder. A model with one class does not classify: it scores how well two
        texts fit."""
        if not self.is_head:
            return "embed"
        return "rerank" if len(self.labels()) == 1 else "classify"

    def encoder(self, *, device: str, threads: int, dtype: str) -> Encoder:
        path = self._network
        if list(path.glob("*.safetensors")):
            return TorchEncoder(
                path,
                f"AutoModel{_HEAD}" if self.is_head else "AutoModel",
                device=device,
                threads=threads,
                dtype=dtype,
                # A head of its own looks at the first token of a row, not of each text in it.
                packs=not self.is_head and can_pack(self.settings),
            )
        if any((path / name).is_file() for name in ONNX_FILES):
            if dtype:
                raise ConfigError(
                    "an ONNX file computes in the type it was exported with", field="dtype"
                )
            return OnnxEncoder(lambda: path, device=device, threads=threads)
        raise ConfigError(
            f"{path} has no safetensors and no model.onnx; pickled weights (*.bin) are not read"
        )

    def labels(self) -> Sequence[str]:
        names = self.settings.get("id2label")
        if not names:
            return [f"LABEL_{number}" for number in range(self.settings.get("num_labels") or 2)]
        return [str(names[key]) for key in sorted(names, key=int)]

    def activation(self) -> Callable[[Any], Any] | None:
        """The activation that sentence-transformers has stored for a cross-encoder, in one of three
        places."""
        newer = (self.settings.get("sentence_transformers") or {}).get("activation_fn")
        older = self.settings.get("sbert_ce_default_activation_function")
        name = self.sentences.activation or newer or older
        return activation_named(name, str(self.path)) if name else None

    def pooling(self) -> Pooling:
        if self.sentences.pooling is None:
            raise ConfigError(f"{self.path / 'modules.json'}: no Pooling follows the Transformer")
        return self.sentences.pooling

    def width(self) -> int:
        """The width of one vector."""
        names = ("hidden_size", "dim", "d_model", "emb_dim", "n_embd")  # by family
        width = next((self.settings[name] for name in names if self.settings.get(name)), None)
        if self.sentences.states is not None:
            width = self.sentences.states
        if not isinstance(width, int):
            raise ConfigError(f"{self.config}: it has no hidden_size")
        width *= len(self.pooling().modes)
        return width_through(self.sentences.steps, width, self.path)

    def longest(self, asked: int) -> int:
        """The fewest tokens that any of its files allows; tokenizers without a limit say 10**30."""
        positions = self.settings.get("max_position_embeddings") or 0
        if self.settings.get("model_type") in _ROBERTA and positions > 0:
            positions -= (self.settings.get("pad_token_id") or 1) + 1  # begin after the padding's
        tokenizer = read_optional_json(self._network / "tokenizer_config.json")
        longest = tokenizer.get("model_max_length")
        if not isinstance(longest, int | float | type(None)):
            raise ConfigError(f"{self.path}: model_max_length = {longest!r} is not a number")
        limits = (asked, self.sentences.max_tokens, positions if positions > 0 else None, longest)
        return int(min(limit for limit in limits if limit))

    def proof_tokens(self) -> int:
        """Enough tokens to exceed the network's attention window, if it has one."""
        names = ("sliding_window", "local_attention", "attention_window")
        found = [self.settings.get(name) for name in names]
        windows = [max(each) if isinstance(each, list) else each for each in found if each]
        # BigBird's blocks: on fewer tokens than this it attends to all.
        blocks = self.settings.get("block_size") or 0
        windows.append((5 + 2 * (self.settings.get("num_random_blocks") or 0)) * blocks)
        return int(max([LONG, *(each + 8 for each in windows if each <= _LONGEST_PROOF)]))
