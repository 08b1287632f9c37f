"""Finds all requirements of an extra that are missing, so that one message can name them."""

import importlib
import importlib.metadata
import re
from pathlib import Path
from typing import Any

from headway.errors import ConfigError

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)\s*(\[(?P<extras>[^\]]*)\])?[^;]*(;(?P<marker>.*))?", re.DOTALL
)
_EXTRA = re.compile(r"""extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")


def require(module: str, who: str, extra: str) -> Any:
    """The module. Raises ConfigError with the command that brings it."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a library of the system's is missing
        name = module.partition(".")[0]
        raise ConfigError(f"{who} need {name}: pip install 'headway[{extra}]'") from error


def missing_for(install: str) -> list[str]:
    """Packages that `pip install` of this would bring, e.g. `headway[minilm]`, by name."""
    found = _REQUIREMENT.fullmatch(install)
    if found is None:
        return []
    missing: dict[str, None] = {}
    for extra in (found["extras"] or "").split(","):
        _look(found["name"], extra.strip(), missing, set())
    return list(missing)


def _look(package: str, extra: str, missing: dict[str, None], seen: set[tuple[str, str]]) -> None:
    """Look only at the extras' own requirements: pip has checked those of installed packages."""
    if (package, extra) in seen or not extra:
        return
    seen.add((package, extra))
    for line in importlib.metadata.requires(package) or ():
        found = _REQUIREMENT.fullmatch(line)
        wanted = _EXTRA.search((found and found["marker"]) or "")
        if found is None or wanted is None or _same(wanted["extra"]) != _same(extra):
            continue
        name = found["name"]
        if not is_installed(name):
            missing[name] = None
        for inner in (found["extras"] or "").split(","):
            if is_installed(name):
                _look(name, inner.strip(), missing, seen)


def _same(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


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
