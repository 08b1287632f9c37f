"""Folders of encoders: tiny random networks of many families, poolings and heads, served as they
are, and compared with sentence-transformers, or transformers' own forward, of each text alone.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.exactness.cases import EXACT, Case, Verdict

_MOST = 2e-3  # of the largest number, and of 1
_MOST_SHORT = 5e-2  # in bfloat16
_SENTENCE = "red green blue fox dog jumps over lazy the a quick brown hello world déjà vu"
WORDS = _SENTENCE.split()
TEXTS = (
    "red fox",
    "the quick brown fox jumps over the lazy dog " * 3,
    "Hello World",
    "green",
    "a [SEP] blue [CLS] dog [PAD] déjà vu",
    "the lazy dog " * 12,
    "blue",
)
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_VOCABULARY = 64


# ---- the networks


_SMALL = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
_DECODER = {
    **_SMALL,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_T5 = {
    "vocab_size": _VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 4,
    "pad_token_id": 0,
}
_ERNIE = {**_SMALL, "type_vocab_size": 2, "task_type_vocab_size": 2, "use_task_id": False}
FAMILIES: dict[str, Mapping[str, Any]] = {
    "albert": {**_SMALL, "embedding_size": 16},
    "bert": _SMALL,
    "bert-generation": _SMALL,
    "big_bird": {**_SMALL, "attention_type": "original_full"},
    "camembert": _SMALL,
    "convbert": {**_SMALL, "embedding_size": 32, "head_ratio": 2, "conv_kernel_size": 3},
    "data2vec-text": _SMALL,
    "deberta": {**_SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {
        **_SMALL,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "distilbert": {
        "vocab_size": _VOCABULARY,
        "dim": 32,
        "hidden_dim": 48,
        "n_layers": 2,
        "n_heads": 4,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    },
    "electra": {**_SMALL, "embedding_size": 16},
    "ernie": _ERNIE,
    "esm": {**_SMALL, "position_embedding_type": "rotary", "mask_token_id": 4},
    "eurobert": _DECODER,
    "flaubert": {
        "vocab_size": _VOCABULARY,
        "emb_dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "pad_index": 0,
        "max_position_embeddings": 128,
    },
    "fnet": {**_SMALL, "tpu_short_seq_length": 128},
    "gemma3_text": {**_DECODER, "sliding_window": 16, "use_bidirectional_attention": True},
    "gpt2": {
        "vocab_size": _VOCABULARY,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    "ibert": {**_SMALL, "quant_mode": False},
    "layoutlm": _SMALL,
    "llama": _DECODER,
    "longformer": {**_SMALL, "attention_window": [8, 8]},
    "longt5": {**_T5, "encoder_attention_type": "local", "local_radius": 7},
    "luke": {**_SMALL, "entity_vocab_size": 4, "entity_emb_size": 8},
    "mamba": {
        "vocab_size": _VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 4,
        "pad_token_id": 0,
    },
    "megatron-bert": _SMALL,
    "mistral": {**_DECODER, "sliding_window": 16},
    "mobilebert": {**_SMALL, "embedding_size": 16, "intra_bottleneck_size": 32},
    "modernbert": {
        **_SMALL,
        "local_attention": 16,
        "global_attn_every_n_layers": 2,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
    "mpnet": _SMALL,
    "mra": _SMALL,
    "mt5": _T5,
    "nomic_bert": _SMALL,
    "qwen2": _DECODER,
    "qwen3": _DECODER,
    "reformer": {
        "vocab_size": _VOCABULARY,
        "attn_layers": ["local", "lsh"],
        "hidden_size": 32,
        "num_attention_heads": 4,
        "attention_head_size": 8,
        "feed_forward_size": 48,
        "axial_pos_embds": False,
        "max_position_embeddings": 256,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "num_buckets": 4,
        "pad_token_id": 0,
    },
    "rembert": {**_SMALL, "input_embedding_size": 16, "output_embedding_size": 16},
    "roberta": _SMALL,
    "roberta-prelayernorm": _SMALL,
    "roc_bert": {**_SMALL, "enable_pronunciation": False, "enable_shape": False},
    "roformer": {**_SMALL, "embedding_size": 32},
    "splinter": _SMALL,
    "squeezebert": {**_SMALL, "embedding_size": 32},
    "t5": _T5,
    "umt5": _T5,
    "xlm": {
        "vocab_size": _VOCABULARY,
        "emb_dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "pad_index": 0,
        "max_position_embeddings": 128,
    },
    "xlm-roberta": _SMALL,
    "xlm-roberta-xl": _SMALL,
    "xlnet": {
        "vocab_size": _VOCABULARY,
        "d_model": 32,
        "n_layer": 2,
        "n_head": 4,
        "d_inner": 48,
        "pad_token_id": 0,
    },
    "xmod": {**_SMALL, "languages": ["en_XX"], "default_language": "en_XX"},
    "yoso": {**_SMALL, "use_expectation": True},
}
_SHORT = ("bert", "roberta", "fnet", "modernbert", "xlnet")
# Encoders and decoders whose halves are not told apart, and what has no text-only states.
_REFUSED = {"bart": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}}


def save_network(folder: Path, kind: str, head: str = "AutoModel", **more: Any) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    settings = {**FAMILIES.get(kind, _REFUSED.get(kind, {})), **more}
    config = transformers.AutoConfig.for_model(kind, **settings)
    if kind in ("t5", "mt5", "umt5", "longt5") and head == "AutoModel":
        head = {"longt5": "LongT5", "umt5": "UMT5", "mt5": "MT5", "t5": "T5"}[kind] + "EncoderModel"
        model = getattr(transformers, head)(config)
    else:
        model = getattr(transformers, head).from_config(config)
    for name, each in model.named_parameters():  # what begins as 0 or 1 shows nothing
        if each.ndim < 2 or "classifier" in name or "score" in name:
            each.data += 0.3 * torch.randn_like(each)
    model.eval().save_pretrained(folder)
    return model


def save_tokenizer(folder: Path, *, names: Sequence[str] | None = None) -> None:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    entries = [*_SPECIALS, *WORDS, *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    places = {word: place for place, word in enumerate(entries)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(places, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(each, places[each]) for each in ("[CLS]", "[SEP]")],
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=96,
        model_input_names=names or ["input_ids", "token_type_ids", "attention_mask"],
    )
    wrapped.save_pretrained(folder)


# ---- ours, and the library's


def ours(folder: Path, values: Sequence[Any], most: float = _MOST, **options: Any) -> list[Any]:
    """As a batch of all, and again in two halves: the answers must be the same."""
    from headway.models.catalogue import build

    model: Any = build(str(folder), options)
    model.setup()
    model.load()
    items = [model.prepare(value, truncate=True) for value in values]
    answers = list(model.predict(items))
    half = len(items) // 2
    parts = [*model.predict(items[:half]), *model.predict(items[half:])]
    for one, other in zip(answers, parts, strict=True):
        assert _distance(_numbers(one), _numbers(other)) <= most, "other numbers in other company"
    return [model.finish(answer) for answer in answers]


def _numbers(answer: Any) -> Any:
    return getattr(answer, "score", answer)


def compared(found: Sequence[Any], expected: Sequence[Any], most: float = _MOST) -> Verdict:
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        error = _distance(one, other)
        if not error <= most:
            return Verdict("wrong", f"text {number}: {error:.3g} off: {one} for {other}"[:200])
    return EXACT


def _distance(one: Any, other: Any) -> float:
    import numpy

    one, other = (numpy.asarray(each, numpy.float64) for each in (one, other))
    if one.shape != other.shape or not numpy.isfinite(one).all():
        return float("inf")
    return float(numpy.abs(one - other).max() / max(1.0, numpy.abs(other).max()))


def sentences_of(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def embeds(folder: Path) -> Verdict:
    """Against sentence-transformers, a text at a time."""
    model = sentences_of(folder)
    expected = [model.encode([text])[0] for text in TEXTS]
    return compared(ours(folder, TEXTS), expected)


# ---- the cases


def _family(kind: str, folder: Path) -> Verdict:
    """The network alone, as transformers or sentence-transformers saves it: the mean is taken."""
    names = None if kind in ("bert", "xlnet") else ["input_ids", "attention_mask"]
    save_network(folder, kind)
    save_tokenizer(folder, names=names)
    return embeds(folder)


def _in_bfloat16(kind: str, folder: Path) -> Verdict:
    """Against float32, as far as its 8 bits go; and in company, as the proof has it."""
    save_network(folder, kind)
    save_tokenizer(folder, names=["input_ids", "attention_mask"])
    model = sentences_of(folder)
    expected = [model.encode([text])[0] for text in TEXTS]
    found = ours(folder, TEXTS, most=_MOST_SHORT, dtype="bfloat16")
    return compared(found, expected, most=_MOST_SHORT)


def _random(kind: str, more: Mapping[str, Any], folder: Path) -> Verdict:
    save_network(folder, kind, **more)
    save_tokenizer(folder, names=["input_ids", "attention_mask"])
    return embeds(folder)


def _modules(
    behind: Callable[[], Sequence[Any]],
    overall: Mapping[str, Any],
    lengths: Mapping[str, Any],
    folder: Path,
    *,
    kind: str = "bert",
    edit: Callable[[Path], object] | None = None,
) -> Verdict:
    """Saved by sentence-transformers itself; then its files say more."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Transformer

    network = folder / "network"
    save_network(network, kind)
    save_tokenizer(network)
    saved = folder / "saved"
    SentenceTransformer(modules=[Transformer(str(network)), *behind()], device="cpu").save(
        str(saved)
    )
    _add(saved / "config_sentence_transformers.json", overall)
    _add(saved / "sentence_bert_config.json", lengths)
    if edit is not None:
        edit(saved)
    return embeds(saved)


def _cut_from_the_left(saved: Path) -> None:
    _add(saved / "tokenizer_config.json", {"truncation_side": "left"})


def _saved_as_a_classifier(saved: Path) -> None:
    """Its network was a classifier's once; modules.json says what it is now."""
    _add(saved / "config.json", {"architectures": ["BertForSequenceClassification"]})


def _add(file: Path, more: Mapping[str, Any]) -> None:
    found = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**found, **more}))


def _pooled(*modes: str, **more: Any) -> Any:
    from sentence_transformers.models import Pooling

    return Pooling(32, modes[0] if len(modes) == 1 else modes, **more)


def _dense(takes: int, gives: int, activation: str = "Tanh", **more: Any) -> Any:
    import torch
    from sentence_transformers.models import Dense

    return Dense(takes, gives, activation_function=getattr(torch.nn, activation)(), **more)


def _layer_norm(size: int) -> Any:
    import torch
    from sentence_transformers.models import LayerNorm

    module = LayerNorm(size)
    torch.nn.init.normal_(module.norm.weight)
    torch.nn.init.normal_(module.norm.bias)
    return module


def _normalize() -> Any:
    from sentence_transformers.models import Normalize

    return Normalize()


def _module_cases() -> list[Case]:
    modes = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    listed: dict[str, tuple[Callable[[], Sequence[Any]], Mapping[str, Any], Mapping[str, Any]]] = {
        **{
            f"pooling {mode}": (functools.partial(lambda mode: [_pooled(mode)], mode), {}, {})
            for mode in modes
        },
        "poolings cls and max": (lambda: [_pooled("cls", "max")], {}, {}),
        "poolings, all": (lambda: [_pooled(*modes)], {}, {}),
        "normalize": (lambda: [_pooled("mean"), _normalize()], {}, {}),
        "dense": (lambda: [_pooled("mean"), _dense(32, 12)], {}, {}),
        "dense without bias": (
            lambda: [_pooled("mean"), _dense(32, 12, "Identity", bias=False)],
            {},
            {},
        ),
        **{
            f"dense {name}": (
                functools.partial(lambda name: [_pooled("cls"), _dense(32, 12, name)], name),
                {},
                {},
            )
            for name in ("Identity", "ReLU", "GELU", "SiLU", "Sigmoid")
        },
        "dense, twice, normalize": (
            lambda: [_pooled("mean"), _dense(32, 48), _dense(48, 8), _normalize()],
            {},
            {},
        ),
        "layer norm": (lambda: [_pooled("mean"), _layer_norm(32)], {}, {}),
        "truncate_dim": (lambda: [_pooled("mean"), _normalize()], {"truncate_dim": 10}, {}),
        "lower case": (lambda: [_pooled("mean")], {}, {"do_lower_case": True}),
        "max_seq_length": (lambda: [_pooled("mean")], {}, {"max_seq_length": 12}),
        "prompt": (
            lambda: [_pooled("mean")],
            {"prompts": {"query": "red fox "}, "default_prompt_name": "query"},
            {},
        ),
        "prompts, none by default": (
            lambda: [_pooled("mean")],
            {"prompts": {"query": "red fox "}},
            {},
        ),
        **{
            f"prompt that {mode} leaves out": (
                functools.partial(
                    lambda mode: [_pooled(mode, include_prompt=False)],
                    mode,
                ),
                {"prompts": {"passage": "the blue "}, "default_prompt_name": "passage"},
                {},
            )
            for mode in modes
        },
    }
    edited = [
        Case(
            "encoders",
            f"modules: {edit.__name__[1:].replace('_', ' ')}",
            functools.partial(_modules, lambda: [_pooled("mean")], {}, {}, edit=edit),
            expected="exact",
        )
        for edit in (_cut_from_the_left, _saved_as_a_classifier)
    ]
    return edited + [
        Case(
            "encoders",
            f"modules: {name}",
            functools.partial(_modules, *parts),
            expected="exact",
            is_short=name in ("poolings, all", "dense, twice, normalize", "prompt"),
        )
        for name, parts in listed.items()
    ]


def _refused_cases() -> list[Case]:
    def pooling(**more: Any) -> Callable[[Path], object]:
        return lambda saved: _add(saved / "1_Pooling" / "config.json", more)

    def lengths(**more: Any) -> Callable[[Path], object]:
        return lambda saved: _add(saved / "sentence_bert_config.json", more)

    def own_code(saved: Path) -> None:
        listed = json.loads((saved / "modules.json").read_text())
        listed[1]["type"] = "custom.Pooling"
        (saved / "modules.json").write_text(json.dumps(listed))

    def pickled(saved: Path) -> None:
        (saved / "2_Dense" / "model.safetensors").rename(saved / "2_Dense" / "pytorch_model.bin")

    def without(saved: Path) -> None:
        listed = json.loads((saved / "modules.json").read_text())
        (saved / "modules.json").write_text(json.dumps(listed[:1]))

    edits: dict[str, tuple[Callable[[Path], object], str]] = {
        "a pooling field": (pooling(attention=True), "attention = true"),
        "a pooling mode": (pooling(pooling_mode="median"), "'median'"),
        "another width": (pooling(embedding_dimension=7), "7"),
        "a query's length": (lengths(query_length=32), "query_length"),
        "arguments of the network": (lengths(model_args={"a": 1}), "model_args"),
        "a task": (lengths(transformer_task="fill-mask"), "fill-mask"),
        "code of its own": (own_code, "custom.Pooling"),
        "pickled weights": (pickled, "pickled"),
        "no pooling": (without, "no Pooling"),
    }
    behind: Callable[[], Sequence[Any]] = lambda: [_pooled("mean"), _dense(32, 12)]  # noqa: E731
    return [
        Case(
            "encoders",
            f"refused: {name}",
            functools.partial(_served_after, behind, edit),
            expected="refused",
            refusal=says,
            is_short=name == "code of its own",
        )
        for name, (edit, says) in edits.items()
    ]


def _served_after(
    behind: Callable[[], Sequence[Any]], edit: Callable[[Path], object], folder: Path
) -> Verdict:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Transformer

    save_network(folder / "network", "bert")
    save_tokenizer(folder / "network")
    modules = [Transformer(str(folder / "network")), *behind()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "saved"))
    edit(folder / "saved")
    ours(folder / "saved", TEXTS)
    return Verdict("wrong", "it was served")


def _lacks_tensors(which: str, folder: Path) -> Verdict:
    from safetensors.torch import load_file, save_file

    save_network(folder, "bert")
    save_tokenizer(folder)
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    if which == "one too few":
        del tensors[name]
    else:
        tensors["encoder.layer.2.output.dense.weight"] = tensors[name].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    ours(folder, TEXTS)
    return Verdict("wrong", "it was served")


# ---- heads


def _classifies(
    kind: str, labels: int, settings: Mapping[str, Any], squash: str, folder: Path
) -> Verdict:
    """Against transformers' forward, and the activation that its pipeline would take."""
    import torch
    from transformers import AutoTokenizer

    model = save_network(
        folder, kind, "AutoModelForSequenceClassification", num_labels=labels, **settings
    )
    save_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    if "token_type_ids" not in model.forward.__code__.co_varnames or kind == "roberta":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    activation: Any = {
        "softmax": lambda logits: logits.softmax(-1),
        "sigmoid": torch.sigmoid,
        "identity": lambda logits: logits,
    }[squash]
    expected = []
    for text in TEXTS:
        tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=96)
        with torch.no_grad():
            scores = activation(model(**tokens).logits)[0]
        expected.append(scores.sort(descending=True).values.numpy())
    found = ours(folder, TEXTS, task="classify")
    return compared([each["scores"] for each in found], expected)


_QUERIES = ("red fox", "the lazy dog jumps", "Hello World", "green")
_DOCUMENTS = ("blue dog", "the quick brown fox jumps over the lazy dog " * 4, "vu", "a [SEP] fox")


def _ranks(
    kind: str, settings: Mapping[str, Any], overall: Mapping[str, Any], folder: Path
) -> Verdict:
    """Against sentence-transformers' own CrossEncoder."""
    from sentence_transformers import CrossEncoder

    save_network(folder, kind, "AutoModelForSequenceClassification", num_labels=1)
    names = ["input_ids", "attention_mask"]
    save_tokenizer(folder, names=names if kind != "bert" else None)
    _add(folder / "config.json", settings)
    if overall:
        CrossEncoder(str(folder), device="cpu").save_pretrained(str(folder / "saved"))
        folder = folder / "saved"
        _add(folder / "config_sentence_transformers.json", overall)
    library = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    pairs = list(zip(_QUERIES, _DOCUMENTS, strict=True))
    expected = [library.predict([pair])[0] for pair in pairs]
    values = [{"query": query, "document": document} for query, document in pairs]
    return compared(ours(folder, values), expected)


def _compares(similarity: str, overall: Mapping[str, Any], folder: Path) -> Verdict:
    """Against `encode_query`, `encode_document` and `similarity` of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Transformer

    save_network(folder / "network", "bert")
    save_tokenizer(folder / "network")
    modules = [Transformer(str(folder / "network")), _pooled("mean", include_prompt=False)]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "saved"))
    _add(
        folder / "saved" / "config_sentence_transformers.json",
        {"similarity_fn_name": similarity, **overall},
    )
    library = sentences_of(folder / "saved")
    expected = [
        float(
            library.similarity(library.encode_query([query]), library.encode_document([document]))[
                0, 0
            ]
        )
        for query, document in zip(_QUERIES, _DOCUMENTS, strict=True)
    ]
    values = [
        {"query": query, "document": document}
        for query, document in zip(_QUERIES, _DOCUMENTS, strict=True)
    ]
    return compared(ours(folder / "saved", values, task="rerank"), expected)


def _head_cases() -> list[Case]:
    problems = {
        "": "softmax",
        "single_label_classification": "softmax",
        "multi_label_classification": "sigmoid",
        "regression": "identity",
    }
    cases = [
        Case(
            "encoders",
            f"classes: bert {problem or 'unsaid'} {labels}",
            functools.partial(
                _classifies,
                "bert",
                labels,
                {"problem_type": problem} if problem else {},
                squash if labels > 1 or problem else "sigmoid",
            ),
            expected="exact",
            is_short=problem == "multi_label_classification" and labels == 3,
        )
        for problem, squash in problems.items()
        for labels in (1, 3)
        if (problem, labels) != ("single_label_classification", 1)
    ]
    cases += [
        Case("encoders", f"classes: {kind}", functools.partial(_classifies, kind, 3, {}, "softmax"))
        for kind in (
            "roberta",
            "distilbert",
            "electra",
            "deberta-v2",
            "modernbert",
            "llama",
            "xlnet",
        )
    ]
    identity, tanh = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
    said: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
        "unsaid": ("bert", {}, {}),
        "identity, older": ("bert", {"sbert_ce_default_activation_function": identity}, {}),
        "tanh, newer": ("bert", {"sentence_transformers": {"activation_fn": tanh}}, {}),
        "roberta": ("roberta", {}, {}),
        "modules and identity": ("bert", {}, {"activation_fn": identity}),
    }
    cases += [
        Case("encoders", f"pairs: {name}", functools.partial(_ranks, *parts), expected="exact")
        for name, parts in said.items()
    ]
    prompts = {"prompts": {"query": "red: ", "document": "the "}}
    return cases + [
        Case(
            "encoders",
            f"compared: {name}{' with prompts' if overall else ''}",
            functools.partial(_compares, name, overall),
            expected="exact",
        )
        for name in ("cosine", "dot", "euclidean", "manhattan")
        for overall in ({}, prompts)
    ]


def cases() -> list[Case]:
    families = [
        Case(
            "encoders", f"family: {kind}", functools.partial(_family, kind), is_short=kind in _SHORT
        )
        for kind in FAMILIES
    ]
    variants: dict[str, tuple[str, Mapping[str, Any]]] = {
        "big_bird, sparse": (
            "big_bird",
            {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
        ),
        "longt5, global": ("longt5", {"encoder_attention_type": "transient-global"}),
        "bert that is a decoder": ("bert", {"is_decoder": True}),
        "llama, rope scaled": ("llama", {"rope_theta": 500.0}),
        "bart": ("bart", {"vocab_size": _VOCABULARY, "encoder_attention_heads": 4}),
    }
    variant_cases = [
        Case("encoders", f"variant: {name}", functools.partial(_random, kind, more))
        for name, (kind, more) in variants.items()
    ]
    variant_cases += [
        Case(
            "encoders",
            f"bfloat16: {kind}",
            functools.partial(_in_bfloat16, kind),
            expected="exact",
            is_short=kind == "bert",
        )
        for kind in ("bert", "roberta", "modernbert", "deberta-v2")
    ]
    tensors = [
        Case(
            "encoders",
            f"tensors: {which}",
            functools.partial(_lacks_tensors, which),
            expected="refused",
            refusal=says,
        )
        for which, says in (
            ("one too few", "encoder.layer.1.output.dense.weight"),
            ("one too many", "encoder.layer.2.output.dense.weight"),
        )
    ]
    return [
        *families,
        *variant_cases,
        *_module_cases(),
        *_refused_cases(),
        *tensors,
        *_head_cases(),
    ]
