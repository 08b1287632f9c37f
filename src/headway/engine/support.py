"""Which models are computed here, and why another is not: one place for every engine and device.

Allow-lists of what a computation rests on. What is on none of them is refused by its own name,
never by the model's: a key of config.json, a rope type, a kind of layer, a way to store weights.
"""

import importlib.metadata
import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from headway.engine.architecture import DEFAULTS, LlamaSpec, completed, rope_of

Config = Mapping[str, Any]
Engine = Literal["own", "gpu", "transformers"]

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
    "max_position_embeddings",
)
_DERIVED = ("head_dim", "num_key_value_heads")  # null: they follow from the others
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "attention_chunk_size",
    "sliding_window",
    "original_max_position_embeddings",
)
_USED = {
    *_SIZES,
    *_DERIVED,
    *("hidden_act", "layer_types", "max_window_layers"),
    *("model_type", "rms_norm_eps", "rope_parameters", "rope_scaling"),
    *("rope_theta", "sliding_window", "tie_word_embeddings", "use_sliding_window"),
    "attention_bias",
}
# The text's, the file's and training's: the logits of a token rest on none of them.
_WITHOUT_EFFECT = {
    *("architectures", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("attention_dropout", "initializer_range", "torch_dtype", "dtype", "transformers_version"),
    *("use_cache", "pretraining_tp", "is_llama_config", "transformers.js_config", "unsloth_fixed"),
    *("unsloth_version", "keys_to_ignore_at_inference", "chunk_size_feed_forward", "id2label"),
    *("label2id", "problem_type", "return_dict", "output_attentions", "output_hidden_states"),
    *("embd_pdrop", "resid_pdrop", "hidden_dropout", "attn_pdrop", "finetuning_task"),
    *("task_specific_params", "tokenizer_class"),
    *("max_length", "min_length", "do_sample", "temperature", "top_k", "top_p"),
}
# Known to be without effect at one value only.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "mlp_bias": (False, None),
    "partial_rotary_factor": (1.0, None),
    "qkv_bias": (None,),
    "use_mrope": (False,),
    "rope_interleaved": (False,),
    "is_decoder": (True, False),
    "is_encoder_decoder": (False,),
    "is_causal": (True,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "use_bidirectional_attention": (False, None),
    "pruned_heads": ({}, None),
    "tie_encoder_decoder": (False,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "attention_chunk_size": (None,),
}
_OWN_ROPES: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
# transformers computes these itself; two of them look at the longest sequence of a whole step, and
# `longest_of` keeps every sequence below the length where that changes anything.
_ROPES = {*_OWN_ROPES, "dynamic", "longrope", "yarn", "proportional"}
_LAYERS = {"full_attention", "attention", "sliding_attention", "chunked_attention"}


# How weights were quantised, by a key of what does not name it.
_METHODS = {
    **dict.fromkeys(("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type"), "bitsandbytes"),
    "zero_point": "awq",
    "desc_act": "gptq",
    "group_size": "MLX",
}


def why_not(config: Config, engine: Engine) -> str | None:
    """The reason why that engine does not compute this config.json; None: it does."""
    text = text_config_of(config)
    for each in (config, text):
        if not isinstance(each.get("model_type", ""), str):
            return f"model_type is {each['model_type']!r}, not a name"
    checks = (_quantised, _odd_length, _contradiction, _odd_layer)
    found = _quantised(config) or next(filter(None, (check(text) for check in checks)), None)
    if found is not None:
        return found
    if engine == "transformers":
        return _odd_rope(text, _ROPES)
    kind = config.get("model_type")
    if kind not in DEFAULTS:
        return f"model_type {kind!r}: ours are {', '.join(DEFAULTS)}"
    return _not_ours(completed(config)) or (
        _not_on_gpu(completed(config)) if engine == "gpu" else None
    )


def why_unknown(config: Config) -> str | None:
    """The reason why transformers as it is installed here does not read this config.json, as far
    as its source says: importing it takes seconds."""
    kind, spec = config.get("model_type"), importlib.util.find_spec("transformers")
    if not isinstance(kind, str) or kind in DEFAULTS or spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "models" / "auto"
    files = [folder / "configuration_auto.py", folder / "auto_mappings.py"]  # older ones have one
    known = "".join(each.read_text() for each in files if each.is_file())
    if not known or f'"{kind}"' in known:
        return None
    version = importlib.metadata.version("transformers")
    return f"model_type {kind!r} is not known to transformers {version}; perhaps to a newer one"


def text_config_of(config: Config) -> Config:
    """The language model's part of the configuration: a model that also sees or hears nests it."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def longest_of(config: Config) -> int:
    """The context that the model was made for; with a sliding window, a chunk of attention or a
    rope that changes with the length, as far as neither matters: up to there it is exact."""
    text = text_config_of(config)
    if text.get("model_type") in DEFAULTS:
        text = completed(text)
    names = list(_LENGTHS[:3])
    if _has_window(text):
        names.append("sliding_window")
    lengths = [text.get(name) for name in names]
    lengths += [
        _original_length(text, rope) for rope in _ropes(text) if rope["rope_type"] == "longrope"
    ]
    return min((each for each in lengths if each), default=8192)


def _original_length(text: Config, rope: Config) -> int | None:
    name = "original_max_position_embeddings"
    return text.get(name) or rope.get(name) or text.get("max_position_embeddings")


# ---- what no engine computes


def _quantised(config: Config) -> str | None:
    found = config.get("quantization_config") or config.get("quantization")
    if not found:
        return None
    method = found.get("quant_method") if isinstance(found, Mapping) else None
    if method is None:
        method = next((name for key, name in _METHODS.items() if key in found), "an unnamed method")
    return f"quantization_config: weights quantised by {method} are not computed"


def _odd_length(text: Config) -> str | None:
    for name in _LENGTHS:
        value = text.get(name)
        if value is not None and (not isinstance(value, int) or value < 0):
            return f"{name} is {value!r}, not a length"
    return None


def _contradiction(text: Config) -> str | None:
    """The reason why rope parameters contradict each other: by version, they are in one of three
    places."""
    parameters, scaling = text.get("rope_parameters"), text.get("rope_scaling")
    for name, rope in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if rope is not None and not isinstance(rope, Mapping):
            return f"{name} is not an object"
    if parameters and scaling and dict(parameters) != dict(scaling):
        return "rope_parameters and rope_scaling differ"
    theta = text.get("rope_theta")
    for rope in _ropes(text):
        if not isinstance(rope["rope_type"], str):
            return f"rope_type is {rope['rope_type']!r}, not a name"
        if (rope.get("type") or rope["rope_type"]) != rope["rope_type"]:
            return f"rope type {rope['type']!r} and rope_type {rope['rope_type']!r} differ"
        if not _is_nested(text) and theta not in (None, rope["rope_theta"]):
            return f"rope_theta is {theta} and, in the rope's parameters, {rope['rope_theta']}"
    return None


def _odd_layer(text: Config) -> str | None:
    kinds = text.get("layer_types") or []
    if not isinstance(kinds, list | tuple):
        return f"layer_types is {kinds!r}, no list"
    odd = sorted({str(each) for each in kinds} - _LAYERS)
    if odd:
        return f"layer_types: {', '.join(odd)}; computed are {', '.join(sorted(_LAYERS))}"
    return None


def _odd_rope(text: Config, known: Mapping[str, Any] | set[str]) -> str | None:
    for rope in _ropes(text):
        if rope["rope_type"] not in known:
            return f"rope type {rope['rope_type']!r}; computed are {', '.join(sorted(known))}"
    return None


def _ropes(text: Config) -> Iterator[dict[str, Any]]:
    """The rotary settings: one, or one for each kind of layer."""
    nested = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if _is_nested(text):
        for rope in nested.values():
            if isinstance(rope, Mapping):
                yield rope_of({**text, "rope_parameters": rope, "rope_scaling": None})
    else:
        yield rope_of(text)


def _is_nested(text: Config) -> bool:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return any(isinstance(each, Mapping) for each in rope.values())


# ---- our own definition


def _not_ours(config: Config) -> str | None:
    """The reason why our own definition cannot be used; None: it can. Every key must be used, or
    known to have no effect."""
    stated = [name for name in _DERIVED if config.get(name) is not None]
    for name in (*_SIZES, *stated):
        if not isinstance(config.get(name), int) or config[name] < 1:
            return f"{name} is {config.get(name)!r}, not a size"
    for name, value in config.items():
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                return f"{name} is {value!r}"
        elif name not in _USED and name not in _WITHOUT_EFFECT and not name.startswith("_"):
            return f"{name} (in config.json) is not known"
    checks = (_odd_value, _odd_own_layers, _odd_own_rope)
    return next(filter(None, (check(config) for check in checks)), None)


def _odd_value(config: Config) -> str | None:
    if config["hidden_act"] != "silu":
        return f"hidden_act {config['hidden_act']!r}"
    if not _is_positive(config["rms_norm_eps"]):
        return f"rms_norm_eps is {config['rms_norm_eps']!r}"
    if config["tie_word_embeddings"] not in (True, False):
        return f"tie_word_embeddings is {config['tie_word_embeddings']!r}"
    if config.get("attention_bias") and config["model_type"] in ("mistral", "qwen2"):
        return "attention_bias"
    spec = LlamaSpec.of(config)
    if spec.heads % spec.kv_heads:
        return f"{spec.heads} attention heads are not a multiple of {spec.kv_heads} key heads"
    return f"head_dim is {spec.head_size}, an odd number" if spec.head_size % 2 else None


def _odd_own_layers(config: Config) -> str | None:
    kinds = config.get("layer_types")
    if kinds is not None and len(kinds) != config["num_hidden_layers"]:
        return f"layer_types names {len(kinds)} layers of {config['num_hidden_layers']}"
    odd = sorted(set(kinds or ()) - {"full_attention", "sliding_attention"})
    if odd:
        return f"layer_types: {odd[0]}"
    if "sliding_attention" in (kinds or ()) and not _has_window(config):
        return "layer_types has sliding_attention, and there is no sliding_window"
    return None


def _odd_own_rope(config: Config) -> str | None:
    return _odd_rope(config, _OWN_ROPES) or _odd_parameters(config)


def _has_window(config: Config) -> bool:
    return bool(config.get("sliding_window") and config.get("use_sliding_window", True))


def _odd_parameters(config: Config) -> str | None:
    rope = rope_of(config)
    known = {"rope_type", "type", "rope_theta", *_OWN_ROPES[rope["rope_type"]]}
    for name, value in rope.items():
        if name not in known and not (name == "partial_rotary_factor" and value == 1.0):
            return f"{name} is not known to the rope type {rope['rope_type']!r}"
    missing = sorted(known - {"type"} - set(rope))
    if missing:
        return f"the rope type {rope['rope_type']!r} lacks {', '.join(missing)}"
    bad = [name for name in known - {"type", "rope_type"} if not _is_positive(rope[name])]
    return f"the rope's {bad[0]} is {rope[bad[0]]!r}" if bad else None


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def _not_on_gpu(config: Config) -> str | None:
    size = LlamaSpec.of(config).head_size
    if size & (size - 1) or not 16 <= size <= 256:
        return f"head_dim is {size}; a GPU's kernels have 16, 32, 64, 128 and 256"
    return None
