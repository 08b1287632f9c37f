"""A tokenizer.json, read by tokenizers: a broken file is refused, however tokenizers gives up."""

from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.models.sources.installed import require


def read_tokenizer(file: Path, who: str, extra: str) -> Any:
    """tokenizers' own object, for `who`, of this extra. Raises ConfigError."""
    tokenizers = require("tokenizers", who, extra)
    try:
        found = tokenizers.Tokenizer.from_file(str(file))
        found.encode("a")  # what is wrong with how it frames a text shows only here
        return found
    except BaseException as error:
        # Its own, of no particular kind; what it gives up on is no Exception even.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ConfigError(f"{file}: tokenizers cannot load it: {error}") from error
        raise
