"""The front's book of adapters: which name means which of the engine's adapters.

The engine knows adapters by a key that is used once, so an adapter that is loaded again under its
old name shares no cached prefix with what it was. Names are the callers'. Used in one event loop.
"""

import asyncio
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigError, InvalidInput, UnknownModel
from headway.runtime.generating import Command, LoadAdapter, UnloadAdapter

NAME = re.compile(r"[A-Za-z0-9][\w.\-]{0,127}")


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    folder: str
    key: str  # the engine's name for it


class AdapterBook:
    def __init__(
        self,
        model: str,
        command: Callable[[Command], None],
        ids: "itertools.count[int]",
        *,
        most: int = 256,
    ) -> None:
        """`command` hands one to the engine, whose `Output` comes to `answered`. The ids are those
        of sequences, too."""
        self._model = model
        self._command = command
        self._ids = ids
        self._most = most
        self._entries: dict[str, Adapter] = {}
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._changing = asyncio.Lock()  # one change after the other

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
        """Returns when sequences may name it. Raises InvalidInput, ConfigError.

        One that is replaced serves until then, and those who have it go on with it.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput(
                f"adapter: {name!r:.80} is no name: letters, digits, and _ . - after"
            )
        async with self._changing:
            before = self._entries.get(name)
            if before is not None and not replaces:
                raise InvalidInput(f"adapter: {name!r} is loaded already")
            if before is None and len(self._entries) >= self._most:
                raise InvalidInput(f"adapter: {self._most} are loaded, which is max_adapters")
            number = next(self._ids)
            entry = Adapter(name, str(folder), f"{name}#{number}")
            try:
                await self._do(LoadAdapter(number, entry.key, entry.folder))
            except asyncio.CancelledError:  # who asked for it has left: nobody will name it
                self._command(UnloadAdapter(next(self._ids), entry.key))
                raise
            self._entries[name] = entry
            if before is not None:
                await self._do(UnloadAdapter(next(self._ids), before.key))

    async def unload(self, name: str) -> None:
        """No caller finds it from now on; whoever has it goes on. Raises UnknownModel."""
        async with self._changing:
            self.key_of(name)
            entry = self._entries.pop(name)
            await self._do(UnloadAdapter(next(self._ids), entry.key))

    async def load_at_start(self, name: str, folder: str | Path) -> None:
        """The same for one that the configuration names: what is wrong is a ConfigError."""
        try:
            await self.load(name, folder)
        except InvalidInput as error:
            raise ConfigError(str(error), field="adapters") from error

    def answered(self, command: int, error: BaseException | None) -> bool:
        """The engine's answer. False: it is no command's."""
        waiting = self._answers.pop(command, None)
        if waiting is None:
            return False
        if not waiting.done():
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)
        return True

    def commands(self) -> list[LoadAdapter]:
        """What a new engine must be told before it is given sequences; its answers are nobody's."""
        return [LoadAdapter(next(self._ids), each.key, each.folder) for each in self.entries()]

    async def _do(self, command: Command) -> None:
        answer = self._answers[command.id] = asyncio.get_running_loop().create_future()
        try:
            self._command(command)
            await answer
        finally:
            self._answers.pop(command.id, None)
