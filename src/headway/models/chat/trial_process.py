"""The process in which grammars are tried: each in a child of its own, with little memory and time.

What compiles a grammar may ask for any amount of either, and where it gets none it aborts. So
nothing else is in this process, and a child that dies is an answer, too.
`headway.models.chat.trials` starts it, and hands it a socket for each grammar.
"""

import contextlib
import os
import random
import resource
import signal
import socket
import sys
from typing import Any

from headway.models.chat.grammars import MOST_BYTES, Grammars, Vocabulary, resident_bytes

MOST_CPU_S = 0.25  # not of the clock: on a busy machine the same grammars pass
MOST_WORKING_BYTES = 2**28
BEGUN = b"!"  # said first: a child that dies afterwards has died of its grammar
PASSED = b"+"
_WALK_TOKENS = 16
_MOST_SHOWN = 500  # characters of what the library says


def main(arguments: list[str]) -> None:
    control = socket.socket(fileno=int(arguments[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then hangs up
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a child: its socket says all
    size, ends = int(arguments[1]), tuple(map(int, arguments[2].split(",")))
    grammars = Grammars(Vocabulary(sys.stdin.buffer.read().decode(), size, ends))
    os.nice(10)  # running answers take precedence
    while True:
        word, sockets, *_ = socket.recv_fds(control, 1, 1)
        if not word:
            return  # the server is gone
        # Where there is no room for a child, silence tells the server.
        with socket.socket(fileno=sockets[0]) as asked, contextlib.suppress(OSError):
            if os.fork() == 0:
                _serve(grammars, asked)


def _serve(grammars: Grammars, asked: socket.socket) -> None:
    try:
        _limit()
        asked.sendall(BEGUN)
        with asked.makefile("rb") as file:
            grammar = file.read().decode()
        why = why_not(grammars, grammar)
        asked.sendall(why.encode() or PASSED)
    finally:
        os._exit(0)


def _limit() -> None:
    """Limit memory and time: beyond, the kernel gives no more memory, or ends this process."""
    with open("/proc/self/statm", "rb") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + MOST_WORKING_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)


def why_not(grammars: Grammars, grammar: str) -> str:
    """Compile it, and follow it for some tokens. Empty: the engine may have it."""
    before = resident_bytes()
    matcher = grammars.compile_anew(grammar)
    if matcher.is_error():
        return _shown(matcher.get_error())
    _walk(matcher)
    if matcher.is_error():
        return _shown(matcher.get_error())
    kept = resident_bytes() - before
    return f"{kept} bytes when compiled; at most {MOST_BYTES} are kept" * (kept > MOST_BYTES)


def _walk(matcher: Any) -> None:
    """The same way each time, so that the verdict is the same."""
    choice = random.Random(0)
    for _ in range(_WALK_TOKENS):
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        if not bits or matcher.is_stopped():
            return
        above = bits >> choice.randrange(bits.bit_length())
        token = bits.bit_length() - above.bit_length() + (above & -above).bit_length() - 1
        matcher.consume_token(token)


def _shown(error: str) -> str:
    return " ".join(error.split())[:_MOST_SHOWN]
