"""Turns what a user names (a folder, a GGUF file, `chat`) into a folder that the engine loads."""

from pathlib import Path

from headway.errors import ConfigError
from headway.files import cache_folder
from headway.models.chat.fetching import fetch, folder_of
from headway.models.chat.gguf import converted
from headway.models.sources.weights import find_weights

CHAT = "chat"
_PATTERNS = ("*.json", "*.safetensors", "*.jinja")


def find_language_model(target: str, *, may_fetch: bool = False) -> Path:
    """Raises ConfigError where there is none."""
    if target == CHAT:
        folder = fetch() if may_fetch else folder_of()
        if folder is None:
            raise ConfigError("the model is not here yet: headway models get chat")
        return folder
    path = Path(target).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"there is no file {target}")
        return converted(path, cache_folder())
    return find_weights(target, patterns=_PATTERNS)
