"""Adapters in an engine's loop: the commands about them, and which sequences wait for or use one.

Folders are read in a thread beside the loop, so that no step waits for a disk.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence as Asked
from headway.errors import HeadwayError, ModelFailed, UnknownModel


class AdapterStore(Protocol):
    """The engine's adapters. A step names the slot of each."""

    def read(self, folder: Path) -> Any:
        """Read a folder: slow, so it is called in any thread. Raises HeadwayError."""

    def add(self, adapter: str, weights: Any) -> None:
        """Add weights that `read` returned; steps may name the adapter from now on."""

    def drop(self, adapter: str) -> None: ...


class LoadAdapter(NamedTuple):
    """Read a folder; sequences may name the adapter from now on, and wait until it is read.

    `Report.returned` says when, or why it cannot be.
    """

    number: int
    adapter: str  # used once: a reloaded adapter has another key
    folder: str


class UnloadAdapter(NamedTuple):
    """Accept no more sequences of this adapter. Running ones go on to their end."""

    number: int
    adapter: str


class AdapterRead(NamedTuple):
    """The reader's message to the loop: a folder has been read, or cannot be."""

    command: LoadAdapter
    weights: Any = None
    error: HeadwayError | None = None


class LoadedAdapters:
    """A loop's adapters: read beside the steps, and dropped when their last sequence has ended."""

    def __init__(
        self,
        store: Callable[[], AdapterStore],
        scheduler: GenerationScheduler,
        *,
        post: Callable[["AdapterRead"], None],
        returns: Callable[[int, Any], None],
        enter: Callable[[Any], None],
    ) -> None:
        """`post` sends a message to the loop from another thread, `returns` answers a command,
        `enter` submits a sequence that was held."""
        self._store = store
        self._scheduler = scheduler
        self._post = post
        self._returns = returns
        self._enter = enter
        self._users: dict[str, set[int]] = {}  # unfinished sequences, of each that is loaded
        self._adapter_of: dict[int, str] = {}
        self._leaving: set[str] = set()  # unloaded, as soon as these have ended
        self._reading: dict[str, dict[int, Any]] = {}  # with the sequences that wait for it
        self._reader: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)

    # ---- sequences

    @property
    def held(self) -> list[int]:
        """Sequences that wait for an adapter."""
        return [each for line in self._reading.values() for each in line]

    def holds(self, sequence: Asked, submit: Any) -> bool:
        """Must the sequence wait, because its adapter is still being read?"""
        line = self._reading.get(sequence.adapter)
        if line is not None:
            line[sequence.id] = submit
        return line is not None

    def release(self, sequence: int) -> None:
        """The sequence is cancelled, perhaps while it waits."""
        for line in self._reading.values():
            line.pop(sequence, None)

    def check(self, adapter: str) -> None:
        """Raises UnknownModel if the adapter is not loaded."""
        if adapter and (adapter not in self._users or adapter in self._leaving):
            raise UnknownModel(f"adapter {adapter!r} is not loaded")

    def entered(self, sequence: Asked) -> None:
        if sequence.adapter:
            self._adapter_of[sequence.id] = sequence.adapter
            self._users[sequence.adapter].add(sequence.id)

    def left(self, sequence: int) -> None:
        """The sequence has ended. It may have been the last user of an adapter."""
        adapter = self._adapter_of.pop(sequence, "")
        if adapter:
            self._users[adapter].discard(sequence)
            if adapter in self._leaving:
                self._drop_if_unused(adapter)

    # ---- commands

    def obey(self, command: LoadAdapter | UnloadAdapter | AdapterRead) -> None:
        if isinstance(command, LoadAdapter):
            if self._reader is None:
                self._reader = ThreadPoolExecutor(1, "headway-adapters")
            self._reading[command.adapter] = {}
            self._reader.submit(self._read, command)
        elif isinstance(command, UnloadAdapter):
            for submit in self._reading.pop(command.adapter, {}).values():
                self._enter(submit)  # it is refused: there is no such adapter
            if command.adapter in self._users:
                self._leaving.add(command.adapter)
                self._drop_if_unused(command.adapter)
            self._returns(command.number, None)
        else:
            self._was_read(*command)

    def _was_read(self, command: LoadAdapter, weights: Any, error: HeadwayError | None) -> None:
        waiting = self._reading.pop(command.adapter, None)
        if waiting is None:
            gone = UnknownModel(f"adapter {command.adapter!r} was unloaded while it was read")
            self._returns(command.number, gone)
            return
        if error is None:
            self._store().add(command.adapter, weights)
            self._users.setdefault(command.adapter, set())
        self._returns(command.number, error)
        for submit in waiting.values():
            self._enter(submit)

    def _read(self, command: LoadAdapter) -> None:
        """In a thread of its own: steps go on meanwhile."""
        try:
            found = AdapterRead(command, self._store().read(Path(command.folder)))
        except HeadwayError as error:
            found = AdapterRead(command, error=error)
        except Exception as error:  # noqa: BLE001  the caller gets it
            failed = ModelFailed(f"{command.folder}: cannot be read: {error}")
            failed.__cause__ = error
            found = AdapterRead(command, error=failed)
        self._post(found)

    def _drop_if_unused(self, adapter: str) -> None:
        self._scheduler.forget_adapter(adapter)
        if not self._users[adapter]:
            del self._users[adapter]
            self._leaving.discard(adapter)
            self._store().drop(adapter)
