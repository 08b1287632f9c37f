"""The model's process, as `spawning` starts it.

It waits for the name of its model, loads it, and answers one call after the other. It ends with
the line to its parent, and with its parent, whatever ends that.
"""

import asyncio
import ctypes
import faulthandler
import importlib
import logging
import os
import pickle
import resource
import runpy
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from typing import Any

from headway.model import CANCEL, Cancel, Model, TensorModel
from headway.runtime.calling.faults import is_out_of_memory, release_memory, text_of
from headway.runtime.workers.process.channel import Channel, Unreadable, Unsendable
from headway.runtime.workers.process.control import ControlPage
from headway.runtime.workers.process.failures import failure_of
from headway.runtime.workers.process.protocol import Kind, WorkerSpec
from headway.runtime.workers.process.recipe import Importing, build_model

BEAT_S = 0.25
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Run a model process. `arguments`: fds of socket and control page, and the parent's pid."""
    socket_fd, control_fd, parent = map(int, arguments)
    _die_with(parent)
    for each in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group: the parent decides
        signal.signal(each, signal.SIG_IGN)
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    channel = Channel(socket.socket(fileno=socket_fd))
    page = ControlPage(control_fd)
    os.close(control_fd)
    threading.Thread(target=_beat, args=(page, parent), daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has hung up, or is gone
        Child(channel, page).run()


def _die_with(parent: int) -> None:
    """Have the kernel end this process when the parent ends, even by SIGKILL."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _exit_without(parent)  # it may have gone before


def _exit_without(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)


def _beat(page: ControlPage, parent: int) -> None:
    """Shows that this process can run Python, and watches the parent: without the kernel's signal,
    this ends orphans."""
    never = threading.Event()
    while not never.wait(BEAT_S):
        page.beat()
        _exit_without(parent)


class PageCancel(Cancel):
    """The token of a call. Clocks are the machine's: a deadline is the same in both processes."""

    def __init__(self, page: ControlPage, call: int, deadline: float) -> None:
        self._page = page
        self._call = call
        self._deadline = deadline

    @property
    def is_set(self) -> bool:
        return self._page.cancelled == self._call or time.monotonic() >= self._deadline


class Child:
    """Serves calls until the line ends."""

    def __init__(self, channel: Channel, page: ControlPage) -> None:
        self._channel = channel
        self._page = page
        self._loop: asyncio.AbstractEventLoop | None = None  # for async models

    def run(self) -> None:
        spec = self._wait_spec()
        try:
            _settle(spec)
            model = build_model(spec.recipe)
            if isinstance(model, Model | TensorModel):
                model.setup()
                model.load()
        except BaseException as error:  # noqa: BLE001  the model is user code
            self._fail(0, error)
            return
        self._send(Kind.READY, 0, None)
        self._serve(model)

    def _wait_spec(self) -> WorkerSpec:
        while (message := self._channel.receive()).kind == Kind.IMPORT:
            for name in message.value:
                with suppress(Exception):  # the model reports a missing module itself
                    importlib.import_module(name)
        spec: WorkerSpec = message.value
        return spec

    def _serve(self, model: Any) -> None:
        predict = getattr(model, "predict", model)
        while True:
            try:
                kind, call, value, beside = self._channel.receive()
            except Unreadable as error:
                self._fail(error.call, error.__cause__ or error)
                continue
            if kind == Kind.SERVE:
                self._give_line(model)
                return
            # Only the model holds a reference: memory is free once the model has released it.
            box = [value]
            del value
            if kind == Kind.PREDICT:
                self._predict(predict, call, box, beside)
            else:
                self._stream(model.stream, call, box, beside)

    def _give_line(self, model: Any) -> None:
        line = self._channel.both_ways()
        try:
            model.serve(line)
        except BaseException as error:
            logging.getLogger(__name__).exception("the model has ended")
            sys.stdout.flush()
            # The parent shows its last line as the reason, and searches it for memory errors.
            last_words = " ".join(f"{type(error).__name__}: {text_of(error)}".split())
            sys.stderr.write(f"{last_words}\n")
            sys.stderr.flush()
            os._exit(1)

    def _predict(
        self, predict: Callable[..., Any], call: int, box: list[Any], beside: bytes
    ) -> None:
        try:
            result = predict(box.pop(), **self._keywords(call, beside))
            if hasattr(result, "__await__"):
                result = self._await(result)
            kind, result = _sendable(result)
        except BaseException as error:  # noqa: BLE001  the model is user code; sys.exit() included
            self._fail(call, error)
            return
        self._answer(kind, call, result)

    def _stream(self, stream: Callable[..., Any], call: int, box: list[Any], beside: bytes) -> None:
        try:
            with closing(self._steps(stream(box.pop(), **self._keywords(call, beside)))) as steps:
                for step in steps:
                    kind, entries = _sendable(list(step))
                    self._answer(Kind.STEP, call, (kind == Kind.RESULT_WITH_FAILURES, entries))
                    if self._page.cancelled == call:
                        break
        except BaseException as error:  # noqa: BLE001  as above
            self._fail(call, error)
            return
        self._send(Kind.END, call, None)

    def _steps(self, steps: Any) -> Any:
        return self._awaited(steps) if isinstance(steps, AsyncIterator) else _closable(steps)

    def _awaited(self, steps: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    step = self._await(anext(steps))
                except StopAsyncIteration:
                    return
                yield step
        finally:
            close = getattr(steps, "aclose", None)
            if close is not None:
                self._await(close())

    def _await(self, awaitable: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(awaitable)

    def _keywords(self, call: int, beside: bytes) -> dict[str, Any]:
        if not beside:
            return {}
        keywords: dict[str, Any] = pickle.loads(beside)
        if CANCEL in keywords:
            keywords[CANCEL] = PageCancel(self._page, call, keywords[CANCEL])
        return keywords

    def _answer(self, kind: Kind, call: int, value: Any) -> None:
        """Send an answer. If it cannot be sent: raise in a stream, else send the model's error."""
        try:
            self._send(kind, call, value)
        except (Unsendable, MemoryError) as error:
            if kind == Kind.STEP:
                raise
            self._fail(call, error.__cause__ or error)

    def _fail(self, call: int, error: BaseException) -> None:
        failure = failure_of(error)
        if is_out_of_memory(error):
            release_memory(error)
        # Its frames hold the batch.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        self._send(Kind.FAILURE, call, failure)

    def _send(self, kind: Kind, call: int, value: Any) -> None:
        try:
            self._channel.send(kind, call, value)
        except OSError:
            os._exit(1)  # the parent is gone, or has given this process up


def _sendable(result: Any) -> tuple[Kind, Any]:
    """Exceptions among the results go as Failures: not every one can be pickled."""
    if type(result) is list and any(issubclass(type(each), BaseException) for each in result):
        return Kind.RESULT_WITH_FAILURES, [
            failure_of(each) if issubclass(type(each), BaseException) else each for each in result
        ]
    return Kind.RESULT, result


def _closable(steps: Any) -> Iterator[Any]:
    try:
        yield from steps
    finally:
        close = getattr(steps, "close", None)
        if close is not None:
            close()


# ---- becoming a worker


def _settle(spec: WorkerSpec) -> None:
    """Apply the spec, before any module of the model is imported."""
    os.environ.clear()  # the parent's may have changed since this process was started
    os.environ.update(spec.environment)
    sys.argv[:], sys.path[:] = spec.arguments, spec.path
    os.chdir(spec.folder)
    for thread in os.listdir("/proc/self/task") if spec.cores else ():
        os.sched_setaffinity(int(thread), spec.cores)  # numpy has started some already
    # A core of gigabytes would be written for minutes, while callers wait. A model that wants one
    # raises the limit.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if spec.memory_bytes is not None:
        _limit_memory(spec.memory_bytes)
    logging.basicConfig(
        level=spec.log_level, stream=sys.stdout, format="%(levelname)s %(name)s: %(message)s"
    )
    if spec.main is not None:
        _import_main(spec.main)


def _limit_memory(limit_bytes: int) -> None:
    """Limit what the process allocates itself. (RLIMIT_AS would also count mapped memory: files,
    memory shared with the parent, the whole of a GPU's.)"""
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _import_main(path: str) -> None:
    """The script that the model is written in, under another name: as `multiprocessing` does, so
    that the code below `if __name__ == "__main__"` does not run."""
    module = types.ModuleType("__mp_main__")
    with Importing():
        module.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
