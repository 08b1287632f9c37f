"""GGUF files: the logits and the ids of the model and tokenizer that they were written from."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.exactness.cases import EXACT, Case, Verdict
from benchmarks.exactness.gguf_splits import SPLITS, TEXT
from headway.models.chat.gguf import converted
from headway.models.chat.text import ChatText

_QUANTISATIONS = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K"),
    *("Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ3_S", "IQ1_S"),
)
_WITHOUT_LOSS = ("F32", "F16", "BF16")
_SHORT = ("F16", "Q4_0", "Q6_K")
_TEXTS = (
    *("Hello, how are you? I'm FINE, it's 12345", "  two  spaces\n\n\ttabs \n and lines\r\n"),
    *("naïve café 日本語 🙂 e\u0301", "a<|im_end|>b<think>c</s> d", "", "x" * 50),
)
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def cases() -> list[Case]:
    return [*_quantised(), *_roped(), *_tokenized(), *_split(), *_refused()]


def _case(name: str, expected: Any = "exact", refusal: str = "", **sample: Any) -> Case:
    is_short = name in ("llama in F16", "llama in Q4_0", "llama in Q6_K", "llama-3's rope_freqs")
    return Case("gguf", name, partial(_run, sample=sample), expected, refusal, is_short=is_short)


def _quantised() -> list[Case]:
    large: dict[str, Any] = {"embedding": 9e4, "quantisation": "BF16"}
    return [
        *(_case(f"llama in {kind}", quantisation=kind) for kind in _QUANTISATIONS),
        *(
            _case(f"{architecture} in {kind}", architecture=architecture, quantisation=kind)
            for architecture in ("qwen2", "qwen3")
            for kind in ("F16", "Q8_0", "Q5_K")
        ),
        _case("values beyond float16, BF16", **large),
        _case("values beyond float16, F32", **{**large, "quantisation": "F32"}),
        _case("values beyond float16, MXFP4", **{**large, "quantisation": "MXFP4"}),
        _case("a head that is the embedding", config={"tie_word_embeddings": True}),
        _case("biases of attention", config={"attention_bias": True}),
        _case("biases of the mlp", config={"mlp_bias": True}),
        _case("heads of another size", config={"head_dim": 32}),
    ]


def _roped() -> list[Case]:
    from benchmarks.exactness.gguf_files import rope_factors

    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    as_yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
        "rope.scaling.finetuned": True,
    }
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

    def factors(**changed: float) -> dict[str, np.ndarray]:
        found = list(rope_factors({**_LLAMA3, **changed}, 64))
        return {"rope_freqs.weight": np.array(found, np.float32)}

    def said(fields: dict[str, Any]) -> dict[str, Any]:
        return {f"llama.{name}": value for name, value in fields.items()}

    with_linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    return [
        _case("llama-3's rope_freqs", config={"rope_parameters": _LLAMA3}, tensors=factors()),
        _case(
            "llama-3.2's rope_freqs",
            config={"rope_parameters": {**_LLAMA3, "factor": 32.0, "rope_theta": 500000.0}},
            tensors=factors(factor=32.0, rope_theta=500000.0),
        ),
        _case("rope_freqs of ones", tensors={"rope_freqs.weight": np.ones(32, np.float32)}),
        _case(
            "rope_freqs of another kind",
            "refused",
            "rope_freqs.weight",
            tensors={"rope_freqs.weight": np.linspace(1, 3, 32, dtype=np.float32)},
        ),
        _case(
            "rope_freqs of another length",
            "refused",
            "rope_freqs.weight",
            tensors={"rope_freqs.weight": np.ones(7, np.float32)},
        ),
        _case("yarn", config={"rope_parameters": yarn}, fields=said(as_yarn)),
        _case(
            "yarn with other limits",
            config={"rope_parameters": {**yarn, "beta_fast": 16.0, "beta_slow": 2.0}},
            fields=said(
                {
                    **as_yarn,
                    "rope.scaling.yarn_beta_fast": 16.0,
                    "rope.scaling.yarn_beta_slow": 2.0,
                }
            ),
        ),
        _case("linear", config={"rope_parameters": linear}, fields=said(with_linear)),
        _case(
            "linear by its old name",
            config={"rope_parameters": linear},
            fields=said({"rope.scale_linear": 2.0}),
        ),
        _case("scaling none", fields=said({"rope.scaling.type": "none"})),
        _case(
            "linear beside rope_freqs",
            "refused",
            "rope_freqs.weight",
            fields=said(with_linear),
            tensors=factors(),
        ),
        *(
            _case(f"{name} = {value}", "refused", name, fields=said({name: value}))
            for name, value in (
                ("rope.scaling.type", "longrope"),
                ("rope.scaling.attn_factor", 1.5),
                ("rope.scaling.yarn_log_multiplier", 0.1),
                ("rope.dimension_count", 32),
                ("rope.freq_base_swa", 1.0),
            )
        ),
    ]


def _tokenized() -> list[Case]:
    ggml = "tokenizer.ggml."
    return [
        _case("tokenizer of llama 2", tokenizer="llama-2"),
        _case(
            "SentencePiece without a space before",
            tokenizer="llama-2",
            fields={f"{ggml}add_space_prefix": False},
        ),
        _case(
            "SentencePiece without a token before",
            tokenizer="llama-2",
            fields={f"{ggml}add_bos_token": False},
        ),
        _case("tokenizer of llama 3", tokenizer="llama-3", pre="llama-bpe"),
        _case("tokenizer of qwen 2", tokenizer="qwen", pre="qwen2"),
        _case(
            "a token before and one after",
            fields={f"{ggml}add_bos_token": True, f"{ggml}add_eos_token": True},
        ),
        _case(
            "llama 3 without a token before",
            tokenizer="llama-3",
            pre="llama-bpe",
            fields={f"{ggml}add_bos_token": False},
        ),
        *(
            _case(
                f"tokenizer.ggml.{name} = {value}",
                "refused",
                name,
                tokenizer=kind,
                fields={ggml + name: value},
            )
            for name, value, kind in (
                ("model", "bert", "byte-level"),
                ("model", "t5", "byte-level"),
                ("model", "rwkv", "byte-level"),
                ("pre", "chameleon", "byte-level"),
                ("pre", "kimi-k2", "byte-level"),
                ("pre", "of tomorrow", "byte-level"),
                ("pre", None, "byte-level"),
                ("token_type", None, "byte-level"),
                ("merges", None, "byte-level"),
                ("scores", None, "llama-2"),
                ("remove_extra_whitespaces", True, "llama-2"),
                ("add_sep_token", True, "byte-level"),
                ("suppress_tokens", [1, 2], "byte-level"),
                ("eos_token_id", 9999, "byte-level"),
                ("add_space_prefix", True, "byte-level"),
            )
            if name != "model"
        ),
        *(
            _case(f"tokenizer {value}", "refused", value, fields={f"{ggml}model": value})
            for value in ("bert", "t5", "rwkv", "plamo2", "no_vocab")
        ),
    ]


def _split() -> list[Case]:
    return [
        Case("gguf", f"words of {pre}", partial(_words, pre=pre, wanted=wanted), "exact")
        for pre, wanted in SPLITS.items()
    ]


def _refused() -> list[Case]:
    fields = (
        ("llama.expert_count", 8),
        ("llama.attention.sliding_window", 64),
        ("llama.attention.scale", 0.5),
        ("llama.logit_scale", 2.0),
        ("llama.attn_logit_softcapping", 50.0),
        ("llama.attention.causal", False),
        ("llama.attention.value_length", 32),
        ("llama.vocab_size", 7),
        ("llama.of_tomorrow", 1),
        ("general.sampling.mirostat", 2),
        ("split.count", 3),
        ("general.type", "adapter"),
        ("llama.attention.layer_norm_rms_epsilon", None),
    )
    tensors = (
        "blk.0.ffn_gate_inp.weight",
        "blk.7.attn_q.weight",
        "blk.0.attn_sinks.weight",
        "cls.weight",
    )
    return [
        *(
            _case(f"{name} = {value}", "refused", name.removeprefix("llama."), fields={name: value})
            for name, value in fields
        ),
        *(
            _case(
                f"a tensor {name}", "refused", name, tensors={name: np.ones((4, 256), np.float32)}
            )
            for name in tensors
        ),
        *(
            _case(f"no tensor {name}", "refused", name, without=(name,))
            for name in ("token_embd.weight", "blk.1.ffn_up.weight", "output_norm.weight")
        ),
        *(_other(kind) for kind in ("gemma2", "phi3", "qwen2moe", "llama4", "clip", "mamba")),
        _case(
            "integers for weights",
            "refused",
            "I8",
            without=("blk.0.ffn_up.weight",),
            tensors={"blk.0.ffn_up.weight": np.ones((256, 256), np.int8)},
        ),
        _case("lists of one number", fields={"llama.attention.head_count_kv": [2, 2]}),
        _case(
            "lists of several",
            "refused",
            "head_count_kv",
            fields={"llama.attention.head_count_kv": [2, 1]},
        ),
        _case("recommended sampling", fields={"general.sampling.temp": 0.5}),
    ]


def _other(kind: str) -> Case:
    def run(folder: Path) -> Verdict:
        import gguf

        writer = gguf.GGUFWriter(folder / "model.gguf", kind)
        writer.add_block_count(1)
        writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        converted(folder / "model.gguf", folder)
        return Verdict("wrong", "it was read")

    return Case("gguf", f"a {kind} model", run, "refused", kind)


def _run(folder: Path, *, sample: dict[str, Any]) -> Verdict:
    from benchmarks.exactness.gguf_files import Sample, write

    made = Sample(**sample)
    written = write(made, folder / "model.gguf")
    at = converted(written.file, folder)
    return _logits(at, written, made) or _ids(at, written, made) or EXACT


def _logits(at: Path, written: Any, sample: Any) -> Verdict | None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(at, dtype=torch.float32).eval()
    ids = torch.arange(1, 121)[None] * 7 % 400
    with torch.inference_mode():
        got, wanted = model(ids).logits, written.model(ids).logits
    spread = float(wanted.std())
    difference = float((got - wanted).abs().max()) / spread
    allowed = 1e-4 if sample.quantisation in _WITHOUT_LOSS else 2e-2
    if not difference <= allowed:
        return Verdict("wrong", f"logits differ by {difference:.2g} of their spread")
    return None


def _ids(at: Path, written: Any, sample: Any) -> Verdict | None:
    text = ChatText(at)
    ggml = "tokenizer.ggml."
    begins = sample.fields.get(f"{ggml}add_bos_token", sample.tokenizer in ("llama-2", "llama-3"))
    before = [written.tokenizer.token_to_id("<s>")] if begins else []
    after = (
        [written.tokenizer.token_to_id("</s>")] if sample.fields.get(f"{ggml}add_eos_token") else []
    )
    if sample.fields.get(f"{ggml}add_space_prefix") is False:
        from tokenizers.normalizers import Replace

        written.tokenizer.normalizer = Replace(" ", "▁")
    for each in _TEXTS:
        wanted = [*before, *written.tokenizer.encode(each).ids, *after]
        got = text.encode(each)
        if got != wanted:
            return Verdict("wrong", f"{each!r}: {got}, not {wanted}")
    return None


def _words(folder: Path, *, pre: str, wanted: list[str]) -> Verdict:
    """What llama.cpp makes of a text, with a vocabulary of everything that it could be cut into."""
    from benchmarks.exactness.gguf_files import write_words

    text = ChatText(converted(write_words(TEXT, pre, folder / "model.gguf"), folder))
    ids = text.tokenizer.encode(TEXT, add_special_tokens=False).ids
    words = [text.tokenizer.id_to_token(id_) for id_ in ids]
    return EXACT if words == wanted else Verdict("wrong", f"{words}, not {wanted}")
