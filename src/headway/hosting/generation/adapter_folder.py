"""Watches a folder of adapters, every few seconds: loads new ones, reloads changed ones, and
unloads removed ones. Adapters that were loaded in another way are left alone."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from headway.config import ModelConfig
from headway.errors import ConfigError, HeadwayError
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.generation.adapter_book import NAME, AdapterBook

_log = logging.getLogger(__name__)
_EVERY_S = 2.0
_FILES = ("adapter_config.json", "adapter_model.safetensors")
Fingerprint = tuple[tuple[int, int], ...]  # size and time of the files


async def start_adapters(book: AdapterBook, config: ModelConfig) -> "AdapterFolder | None":
    """Load what the configuration names. Raises ConfigError for what it names one by one; what is
    wrong in a folder is logged."""
    for name, folder in config.adapters.items():
        await book.load_at_start(name, folder)
    if not config.adapter_folder:
        return None
    return await AdapterFolder(book, Path(config.adapter_folder)).start()


class AdapterFolder:
    def __init__(self, book: AdapterBook, folder: Path, *, every_s: float = _EVERY_S) -> None:
        self._book = book
        self._folder = folder
        self._every_s = every_s
        self._seen: dict[str, Fingerprint] = {}  # as they were last loaded, or refused
        self._own: set[str] = set()  # loaded from here
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Returns when all adapters in the folder have been loaded. Raises ConfigError."""
        if not self._folder.is_dir():
            raise ConfigError(f"{self._folder} is not a folder", field="adapter_folder")
        await self.look()
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def look(self) -> None:
        """Load and unload according to the changes since the last look."""
        try:
            found = await run_in_thread(_scan, self._folder)
        except OSError as error:
            _log.error("%s cannot be read: %s", self._folder, error)
            return
        for name in self._seen.keys() - found.keys():
            del self._seen[name]
            if name in self._own:
                await self._attempt(name, loads=False)
        for name, fingerprint in found.items():
            if self._seen.get(name) != fingerprint:
                # Before it is read: if it changes meanwhile, the next look sees that.
                self._seen[name] = fingerprint
                if name in self._book and name not in self._own:
                    _log.error("adapter %s of %s: the name is taken", name, self._folder)
                    continue
                await self._attempt(name, loads=True)

    async def _attempt(self, name: str, *, loads: bool) -> None:
        try:
            if loads:
                await self._book.load(name, self._folder / name, replaces=True)
                self._own.add(name)
            else:
                self._own.discard(name)
                await self._book.unload(name)
        except HeadwayError as error:
            _log.error("adapter %s: %s", name, error)
        else:
            _log.info("adapter %s was %s", name, "loaded" if loads else "unloaded")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.look()


def _scan(folder: Path) -> Mapping[str, Fingerprint]:
    found = {}
    for each in sorted(folder.iterdir()):
        files = [each / name for name in _FILES]
        if NAME.fullmatch(each.name) and all(file.is_file() for file in files):
            states = [file.stat() for file in files]
            found[each.name] = tuple((state.st_size, state.st_mtime_ns) for state in states)
    return found
