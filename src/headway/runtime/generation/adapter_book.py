"""The loaded adapters by name, as the front knows them.

The engine knows adapters by a key that is used once, so an adapter that is loaded again under its
old name shares no cached prefix with what it was. Names are the callers'. Used in one event loop.
"""

import asyncio
import itertools
import re
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from headway.errors import Closed, ConfigError, InvalidInput, UnknownModel

NAME = re.compile(r"[A-Za-z0-9][\w.\-]{0,127}")
Answer: TypeAlias = "Future[Any] | asyncio.Future[Any]"  # of an engine in a thread, or in a process


class AdapterEngine(Protocol):
    def load_adapter(self, adapter: str, folder: str) -> Answer: ...

    def unload_adapter(self, adapter: str) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    folder: str
    key: str  # the engine's name for it


class AdapterBook:
    def __init__(self, model: str, *, most: int = 256) -> None:
        self._model = model
        self._most = most
        self._engine: AdapterEngine | None = None
        self._numbers = itertools.count(1)
        self._entries: dict[str, Adapter] = {}
        self._changing = asyncio.Lock()  # one change after the other

    def connect(self, engine: AdapterEngine) -> None:
        self._engine = engine

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def entries(self) -> list[Adapter]:
        return [self._entries[name] for name in sorted(self._entries)]

    def key_of(self, name: str) -> str:
        """`""` is the model itself. Raises UnknownModel."""
        if not name:
            return ""
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(sorted(self._entries))
            there = f"; there are: {known}" if known else ""
            raise UnknownModel(f"model {self._model!r} has no adapter {name!r}{there}")
        return entry.key

    async def load(self, name: str, folder: str | Path, *, replaces: bool = False) -> None:
        """Load an adapter; return when sequences may name it. Raises InvalidInput, ConfigError.

        An adapter that is replaced serves until then; its sequences keep it to their end.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput(
                f"adapter: {name!r:.80} is not a valid name: it takes letters and digits, "
                "then also _ . -"
            )
        async with self._changing:
            before = self._entries.get(name)
            if before is not None and not replaces:
                raise InvalidInput(f"adapter: {name!r} is loaded already")
            if before is None and len(self._entries) >= self._most:
                raise InvalidInput(f"adapter: {self._most} are loaded; max_adapters allows no more")
            entry = Adapter(name, str(folder), f"{name}#{next(self._numbers)}")
            engine = self._connected()
            try:
                await _answer(engine.load_adapter(entry.key, entry.folder))
            except asyncio.CancelledError:  # the caller has left: no request will name it
                engine.unload_adapter(entry.key)
                raise
            self._entries[name] = entry
            if before is not None:
                await _answer(engine.unload_adapter(before.key))

    async def unload(self, name: str) -> None:
        """New sequences cannot use it from now on; running ones keep it. Raises UnknownModel."""
        async with self._changing:
            self.key_of(name)
            entry = self._entries.pop(name)
            await _answer(self._connected().unload_adapter(entry.key))

    async def load_at_start(self, name: str, folder: str | Path) -> None:
        """Load an adapter that the configuration names. Mistakes are ConfigErrors."""
        try:
            await self.load(name, folder)
        except InvalidInput as error:
            raise ConfigError(str(error), field="adapters") from error

    def _connected(self) -> AdapterEngine:
        if self._engine is None:
            raise Closed(f"{self._model} has no engine yet")
        return self._engine


async def _answer(answer: Answer) -> None:
    await (asyncio.wrap_future(answer) if isinstance(answer, Future) else answer)
