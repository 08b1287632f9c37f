"""A network of transformers from its folder: the whole of it, or not at all.

transformers makes up what a file lacks, and drops what it does not know; here both are refused,
but for heads that nothing is asked of.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.files import read_json, read_optional_json, why_unreadable
from headway.models.sources.installed import read_tokenizer

# Of these, which write texts, the half that reads them serves alone.
ENCODERS = {
    "longt5": "LongT5EncoderModel",
    "mt5": "MT5EncoderModel",
    "switch_transformers": "SwitchTransformersEncoderModel",
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
}
# Texts on which tokenizers differ: case, accents, marks that are tokens, spaces, other scripts.
_TEXTS = (
    "Hello World! Ein Gruß, 12,5 naïve déjà-vu",
    "a [CLS] b [SEP] c [MASK] d [PAD] e <s> f </s> g <pad> h <mask> i <|endoftext|> j",
    "  two  spaces,\ta tab\nand a line ",
    "日本語と中文 🙂 کتاب",
)


def open_network(path: Path, auto_class: str, dtype: Any) -> Any:
    """Raises ConfigError."""
    import transformers

    settings = read_json(path / "config.json")
    kind = str(settings.get("model_type"))
    if auto_class == "AutoModel" and kind in ENCODERS:
        auto_class = ENCODERS[kind]
    elif auto_class == "AutoModel" and settings.get("is_encoder_decoder"):
        raise ConfigError(
            f"{path}: {kind} has an encoder and a decoder; as encoders only those of "
            f"{sorted(ENCODERS)} are served"
        )
    try:
        model, loaded = getattr(transformers, auto_class).from_pretrained(
            str(path),
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers' own, of many kinds
        raise ConfigError(why_unreadable(path, error)) from error
    has_head = auto_class not in ("AutoModel", *ENCODERS.values())
    _check_tensors(path, model, loaded, has_head=has_head)
    return model


def _check_tensors(path: Path, model: Any, loaded: Any, *, has_head: bool) -> None:
    missing = [name for name in loaded["missing_keys"] if has_head or not _is_pooler(name)]
    if missing:
        raise ConfigError(f"{path}: its files lack {_listed(missing)}")
    unknown = list(loaded["unexpected_keys"])
    if not has_head:
        unknown = [name for name in unknown if not _is_unasked(path, model, name)]
    if unknown:
        raise ConfigError(f"{path}: {type(model).__name__} does not know {_listed(unknown)}")


def _is_pooler(name: str) -> bool:
    """Whether it is the pooler: its vector of the first token's state is not used."""
    return "pooler" in name.split(".")


def _is_unasked(path: Path, model: Any, name: str) -> bool:
    """A head: beside the network that is computed, where the file names that."""
    prefix = f"{model.base_model_prefix}."
    if _is_pooler(name) or (name.startswith("decoder.") and hasattr(model, "encoder")):
        return True
    return not name.startswith(prefix) and any(n.startswith(prefix) for n in _names(path))


def _names(path: Path) -> Iterable[str]:
    from safetensors import safe_open

    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as found:
            yield from found.keys()


def _listed(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first


# ---- the tokenizer


def takes_types(path: Path) -> bool:
    """Whether its tokenizer says which of two texts a token is of."""
    file = path / "tokenizer_config.json"
    names = read_optional_json(file).get("model_input_names")
    if not isinstance(names, list | type(None)):
        raise ConfigError(f"{file}: model_input_names = {names!r} is not a list")
    return names is None or "token_type_ids" in names


def check_tokenizer(path: Path) -> None:
    """Does transformers read texts as tokenizer.json does? Its other files may say something else.
    Raises ConfigError."""
    if not (path / "tokenizer_config.json").is_file():
        return
    import transformers

    try:
        theirs = transformers.AutoTokenizer.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers' own, of many kinds
        raise ConfigError(f"{path}: transformers cannot load its tokenizer: {error}") from error
    ours = read_tokenizer(path / "tokenizer.json", "models of texts", "onnx")
    ours.no_padding()
    ours.no_truncation()
    for content, *_ in sorted(_added(theirs.backend_tokenizer) ^ _added(ours)):
        raise ConfigError(
            f"{path}: the token {content!r} is another in tokenizer_config.json than in "
            "tokenizer.json"
        )
    for text, second in (*((text, None) for text in _TEXTS), _TEXTS[:2]):
        expected, found = theirs(text, second)["input_ids"], ours.encode(text, second).ids
        if expected != found:
            raise ConfigError(
                f"{path}: tokenizer.json and tokenizer_config.json are two tokenizers: of "
                f"{text!r} one makes {found}, the other {expected}"
            )


def _added(tokenizer: Any) -> set[tuple[object, ...]]:
    """The tokens that a text may contain as such, each with the way to find it."""
    return {
        (each.content, number, each.single_word, each.lstrip, each.rstrip, each.normalized)
        for number, each in tokenizer.get_added_tokens_decoder().items()
    }
