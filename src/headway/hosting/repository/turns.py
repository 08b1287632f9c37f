"""Models are loaded one at a time, so that probes do not disturb each other; a load that hangs does
not block the others."""

import asyncio
import logging
import sys
from typing import Self

_log = logging.getLogger(__name__)
_PATIENCE_S = 30.0
_HAND_OVER_S = 0.0005


class LoadTurns:
    """While a model is loaded in a thread, others are served by the event loop: a thread that runs
    Python then hands over after half a millisecond, not after five."""

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self.patience_s = patience_s
        self.alone = asyncio.Semaphore(1)
        self._loading = 0
        self._hand_over_s = 0.0  # before the first load began

    def turn(self, what: str) -> "Turn":
        """`async with` around one load."""
        return Turn(self, what)

    def begin(self) -> None:
        if not self._loading:
            self._hand_over_s = sys.getswitchinterval()
            sys.setswitchinterval(min(self._hand_over_s, _HAND_OVER_S))
        self._loading += 1

    def end(self) -> None:
        self._loading -= 1
        if not self._loading:
            sys.setswitchinterval(self._hand_over_s)


class Turn:
    """The turn of one load. After a while others may load beside it, until it asks to be alone."""

    def __init__(self, turns: LoadTurns, what: str) -> None:
        self._turns = turns
        self._what = what
        self._is_alone = False
        self._patience: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self.wait_alone()
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(self._turns.patience_s, self._let_others_begin)
        self._turns.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._turns.end()
        self._stop_patience()
        if self._is_alone:
            self._turns.alone.release()

    async def wait_alone(self) -> None:
        """Load no other model beside this one from now on, except for one that hangs."""
        self._stop_patience()
        if not self._is_alone:
            await self._turns.alone.acquire()
            self._is_alone = True

    def _let_others_begin(self) -> None:
        said = "%s is still loading after %g s; other models may be loaded beside it from now on"
        _log.info(said, self._what, self._turns.patience_s)
        self._is_alone = False
        self._turns.alone.release()

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
