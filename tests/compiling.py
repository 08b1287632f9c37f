"""What a compiled core asks of tests: nobody replaces its methods, no profile sees its calls."""

import shutil
from pathlib import Path
from typing import Any

import headway
from headway import Batcher, compiled
from headway.core.batching import scheduler

IS_COMPILED = not scheduler.__file__.endswith(".py")


def copy_interpreted(folder: Path) -> Path:
    """Headway without its compiled modules: a folder for `PYTHONPATH`."""
    without = shutil.ignore_patterns("*.so", "*.pyd", compiled.LIST, "__pycache__")
    shutil.copytree(Path(headway.__file__).parent, folder / "headway", ignore=without)
    return folder


class Replaced:
    """A scheduler of which some methods are others; a compiled one lets nobody replace its own."""

    def __init__(self, scheduler: Any, methods: dict[str, Any]) -> None:
        self._scheduler = scheduler
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


def replace_in_scheduler(batcher: Batcher[Any, Any], **methods: Any) -> None:
    queue: Any = batcher._decider.queue
    queue.scheduler = Replaced(queue.scheduler, methods)
