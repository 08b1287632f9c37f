"""The engine's side of the connection: commands come in between steps, one report goes out after
each."""

import gc
import math
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from headway.runtime.generation.loop import (
    CancelSequence,
    Command,
    EngineLoop,
    Report,
    StepRunner,
    SubmitSequence,
)
from headway.runtime.generation.messages import Welcome, packed
from headway.runtime.workers.process.channel import Channel
from headway.runtime.workers.process.protocol import Kind

_BEYOND_S = 3600.0  # the longest wait without another look at the deadlines


def serve(
    engine: StepRunner, line: Channel, *, has_grammars: bool, compile_grammar: Callable[[str], Any]
) -> None:
    """Serve until the front closes the connection. Raises the error that ends the loop."""
    gc.collect()
    gc.freeze()  # loaded objects stay: garbage collections that scan them would delay every stream
    inbox = LineInbox(line, compile_grammar)
    inbox.send(Welcome(engine.limits, engine.vocabulary, has_grammars, engine.computes))

    def report(report: Report) -> None:
        inbox.send(packed(report))

    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the front is gone
        loop = EngineLoop(engine, inbox, report)
        try:
            loop.run()
        finally:
            loop.close()


class LineInbox:
    """Commands from the connection. A sequence with a grammar waits until a thread has compiled
    it."""

    def __init__(self, line: Channel, compile_grammar: Callable[[str], Any]) -> None:
        self._line = line
        self._compile = compile_grammar
        self._compiled = {""}
        self._compiling: dict[int, SubmitSequence] = {}  # by sequence
        self._ready: SimpleQueue[SubmitSequence] = SimpleQueue()
        self._tasks: SimpleQueue[SubmitSequence] = SimpleQueue()
        self._compiler: threading.Thread | None = None
        self._posted: SimpleQueue[Command] = SimpleQueue()
        self._has_helpers = False  # threads that may wake it
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._arrivals = select.poll()
        self._arrivals.register(line.fileno(), select.POLLIN)
        self._arrivals.register(self._wake, select.POLLIN)
        self._room = select.poll()
        self._room.register(line.fileno(), select.POLLOUT)

    def send(self, word: Any) -> None:
        """Waits where the front is behind. Raises OSError when it is gone."""
        while True:
            try:
                self._line.send(Kind.WORD, 0, word)
                return
            except BlockingIOError:
                self._room.poll()

    def wait_commands(self, until: float) -> list[Command] | None:
        commands = self._take()
        while not commands and until > (now := time.monotonic()):
            left = min(until - now, _BEYOND_S)
            # `poll` counts whole milliseconds; the rest of one is spent in this loop.
            self._arrivals.poll(None if until == math.inf else math.floor(left * 1e3))
            commands = self._take()
        return commands

    def _take(self) -> list[Command]:
        commands: list[Command] = []
        if self._has_helpers:
            self._take_posted(commands)
        try:
            while True:
                self._sort_in(self._line.receive().value, commands)
        except BlockingIOError:
            return commands

    def _sort_in(self, command: Command, commands: list[Command]) -> None:
        if isinstance(command, SubmitSequence) and command.sampling.grammar not in self._compiled:
            self._compiling[command.sequence.id] = command
            self._tasks.put(command)
            self._start_compiler()
            return
        if isinstance(command, CancelSequence):
            self._compiling.pop(command.sequence, None)
        commands.append(command)

    # ---- threads beside the loop

    def post(self, command: Command) -> None:
        self._has_helpers = True
        self._posted.put(command)
        os.eventfd_write(self._wake, 1)

    def _take_posted(self, commands: list[Command]) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._posted.empty():
            commands.append(self._posted.get())
        if self._compiling:
            self._take_compiled(commands)

    # ---- grammars

    def _take_compiled(self, commands: list[Command]) -> None:
        while not self._ready.empty():
            command = self._ready.get()
            self._compiled.add(command.sampling.grammar)
            if self._compiling.pop(command.sequence.id, None) is not None:
                commands.append(command)
        if len(self._compiled) > 16:  # fewer than the compiler keeps
            self._compiled = {""}

    def _start_compiler(self) -> None:
        if self._compiler is None:
            self._has_helpers = True
            self._compiler = threading.Thread(target=self._run_compiler, daemon=True)
            self._compiler.start()

    def _run_compiler(self) -> None:
        with suppress(OSError):  # of this thread: running answers take precedence
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + 10)
        while True:
            command = self._tasks.get()
            with suppress(Exception):  # the engine will raise it, too, as the sequence's error
                self._compile(command.sampling.grammar)
            self._ready.put(command)
            os.eventfd_write(self._wake, 1)
