"""Grammars are tried before an engine has them: by a process that can be killed, and once each.

This is the server's side of it. It compiles nothing.
"""

import hashlib
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from headway.errors import NotReady
from headway.models.chat.grammars import Vocabulary
from headway.models.chat.trial_process import BEGUN, MOST_CPU_S, MOST_WORKING_BYTES, PASSED

_ROOT = str(Path(__file__).parents[3])
_PROGRAM = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); "
    "from headway.models.chat.trial_process import main; main(sys.argv[1:])"
)
_MOST_VERDICTS = 4096
_PATIENCE_S = 30.0  # for a process that is only being started, or a machine that is busy
_TOO_MUCH = (
    f"compiling it takes more than {MOST_CPU_S:g} s of a core or {MOST_WORKING_BYTES >> 20} MiB"
)


class Trials:
    """Tries the grammars of one vocabulary, in a process that starts with the first grammar. May be
    used from several threads."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()  # by the grammar's hash

    def known(self, grammar: str) -> str | None:
        """The reason why it is refused, or empty; None: it was not tried yet."""
        return self._verdicts.get(_key(grammar))

    def why_not(self, grammar: str) -> str:
        """Try a grammar, which may take a second. Empty: an engine may use it. Raises NotReady."""
        known = self.known(grammar)
        if known is not None:  # since it was queued, another caller has asked
            return known
        try:
            reply = self._ask(grammar)
        except OSError as error:
            raise NotReady(f"no process to try a grammar in: {error}", retry_after_s=1) from error
        if not reply.startswith(BEGUN):  # the process could not fork, or was killed
            raise NotReady("no process to try a grammar in", retry_after_s=1)
        verdict = reply.removeprefix(BEGUN)
        why = "" if verdict == PASSED else verdict.decode() or _TOO_MUCH
        with self._lock:
            self._verdicts[_key(grammar)] = why
            if len(self._verdicts) > _MOST_VERDICTS:
                self._verdicts.popitem(last=False)
        return why

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, grammar: str) -> bytes:
        """Begins with BEGUN if a child has tried it; nothing else: the child died of it."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._hand_over(theirs)
            ours.settimeout(_PATIENCE_S)
            try:
                ours.sendall(grammar.encode())
                ours.shutdown(socket.SHUT_WR)
                with ours.makefile("rb") as file:
                    return file.read()
            except (BrokenPipeError, ConnectionResetError):
                return b""

    def _hand_over(self, asked: socket.socket) -> None:
        with self._lock:
            for is_last in (False, True):
                try:
                    socket.send_fds(self._started(), [b"?"], [asked.fileno()])
                    return
                except OSError:  # it was killed: the next one does it
                    self._end()
                    if is_last:
                        raise

    def _started(self) -> socket.socket:
        if self._control is not None:
            return self._control
        tokenizer, size, ends = self._vocabulary()
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            program = [sys.executable, "-c", _PROGRAM, str(number), str(size), _joined(ends)]
            self._process = subprocess.Popen(
                program,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a child that is out of memory prints a backtrace
                pass_fds=[number],
            )
        self._control = ours
        assert self._process.stdin is not None
        with self._process.stdin as file:
            file.write(tokenizer.encode())
        return ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None


def _key(grammar: str) -> bytes:
    return hashlib.sha256(grammar.encode()).digest()


def _joined(ends: tuple[int, ...]) -> str:
    return ",".join(map(str, ends))
