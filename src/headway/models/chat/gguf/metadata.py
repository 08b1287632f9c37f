"""A GGUF file's metadata, of which no key is overlooked: each is used, or is known to change
nothing, or is refused by its name."""

from pathlib import Path
from typing import Any

from headway.errors import ConfigError

# They describe the file, or how it was made.
_WITHOUT_EFFECT = frozenset(
    [
        *("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "split.no", "split.tensors.count"),
        *("tokenizer.huggingface.json", "tokenizer.chat_templates"),
        *(
            f"tokenizer.ggml.{name}_token_id"
            for name in (
                *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
                *("prefix", "suffix", "middle"),
            )
        ),
        *(
            f"general.{name}"
            for name in (
                *("name", "author", "version", "organization", "finetune", "basename", "doi"),
                *("description", "quantized_by", "size_label", "license", "url", "uuid", "tags"),
                *("repo_url", "languages", "datasets", "file_type", "quantization_version"),
                *("alignment", "imatrix", "parent_name"),
            )
        ),
    ]
)
_BEGINNINGS_WITHOUT_EFFECT = (
    *("general.license.", "general.source.", "general.base_model.", "general.dataset."),
    *("quantize.imatrix.", "tokenizer.chat_template."),
)


class Metadata:
    """The keys by their last part: those of the model itself are prefixed by `architecture`."""

    def __init__(self, fields: dict[str, Any], file: Path) -> None:
        self._fields = fields
        self._used: set[str] = set()
        self.file = file
        self.architecture = str(self.need("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        self._used.add(key)
        value = self._fields.get(key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise self.refusal(f"its metadata has no {key!r}")
        return value

    def number(self, key: str, default: float | None = None) -> Any:
        """A number of the model's; a list of the same number for each layer is that number."""
        key = f"{self.architecture}.{key}"
        value = self.get(key, default)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float):
            missing = "its metadata has none" if value is None else f"a number, not {value!r:.80}"
            raise self.refusal(f"{key}: {missing}")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse a file in which a key has a value that is not supported."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.refusal(f"{key} = {value!r:.80} is not supported")

    def check_all_used(self) -> None:
        for key in self._fields:
            is_known = key in _WITHOUT_EFFECT or key.startswith(_BEGINNINGS_WITHOUT_EFFECT)
            if key not in self._used and not is_known:
                raise self.refusal(f"its metadata has {key!r}, which is not supported")

    def refusal(self, why: str) -> ConfigError:
        return ConfigError(f"{self.file}: {why}")
