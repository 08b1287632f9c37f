"""Keeps one model: loads, warms, switches and drains its versions, as its lifecycle decides."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

from headway.config import ModelConfig
from headway.core.items import Wait
from headway.core.lifecycle.health import Health
from headway.core.lifecycle.versions import (
    Lifecycle,
    Load,
    Offer,
    Retire,
    VersionState,
    VersionStatus,
)
from headway.errors import (
    ConfigError,
    DeadlineExceeded,
    HeadwayError,
    InvalidInput,
    NotReady,
    QueueFull,
)
from headway.hosting.registry import Registry, ServedModel, VersionEntry, unknown_model
from headway.hosting.repository.building import forget_module
from headway.hosting.repository.listing import Listing
from headway.hosting.repository.turns import LoadTurns, Turn
from headway.hosting.tables import ModelOrigin
from headway.hosting.warm_up import Beside
from headway.models.catalogue import AnyModel
from headway.observe.metrics import VersionReadiness
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.events import Crashed, Event

if TYPE_CHECKING:
    from headway.hosting.generation.served import ServedGenerator
    from headway.hosting.hosted import Served

    ManagedModel: TypeAlias = Served | ServedGenerator

_log = logging.getLogger(__name__)

MakeServed: TypeAlias = Callable[[ModelConfig, str, AnyModel, ModelOrigin], "ManagedModel"]
_SLOW_LOAD_S = 1.0
_STATES = {
    VersionState.LOADING: "LOADING",
    VersionState.WARMING: "LOADING",
    VersionState.READY: "READY",
    VersionState.DRAINING: "UNLOADING",
    None: "UNAVAILABLE",
}


class ModelKeeper:
    """`run()` works until it is stopped; other methods set goals, and may be called any time."""

    def __init__(
        self,
        name: str,
        look: Callable[[], Listing | None],  # the model as it is on disk; slow, reads files
        *,
        registry: Registry,
        make: MakeServed,
        turns: LoadTurns,
        is_asked: Callable[[], bool],  # whether any model is, and must not be disturbed
        drain_s: Callable[[], float],
        crashed: Callable[[Crashed], None],
        is_required: bool = False,  # the server is not ready without it
    ) -> None:
        self.name = name
        self._crashed = crashed
        self._is_required = is_required
        self.error: Exception | None = None  # of the last load, if that failed
        self.logs_failures = True  # False: the waiting caller reports the failure
        self._look = look
        self._registry = registry
        self._make = make
        self._turns = turns
        self._is_asked = is_asked
        self._drain_s = drain_s
        self._listing: Listing | None = None  # the last that could be used
        self._mistake: str | None = None  # why the files on disk cannot
        self._life = Lifecycle()
        self._served: dict[int, ManagedModel] = {}  # by the id of the copy
        self._waiting = 0
        self._changed = asyncio.Event()  # something to do for `run`
        self._news = asyncio.Event()  # replaced with each: waiting callers look again

    # ---- what shall be

    def show(self, listing: Listing | None) -> None:
        """The model as it is on disk now; None: it is gone. A mistake changes nothing."""
        if listing is not None and listing.error is not None:
            if listing.error != self._mistake:
                _log.error("model %s: %s", self.name, listing.error)
            self._mistake = listing.error
            self._tell()
            return
        self._listing, self._mistake = listing, None
        if listing is not None:
            self._life.configure(
                listing.policy,
                is_on_request=listing.config.load == "on-request",
                unload_after_s=listing.config.unload_after_s,
            )
        self._life.offer(() if listing is None else listing.offers)
        self._tell()

    def start(self) -> None:
        """Load it, unless it waits for its first request."""
        if not self._life.is_on_request:
            self._life.want()
        self._tell()

    async def load(self) -> None:
        """Load the model as it is now; dead workers are replaced. Returns when it is ready, or
        raises the reason why it is not."""
        await self.refresh()
        if self.is_gone:
            raise unknown_model(self.name, "", self._registry.names())
        if self._mistake is None:
            for id_ in self._life.serving().values():
                if self._served[id_].health is Health.DEAD:
                    self._life.died(id_)
            self._life.want()
            self._tell()
            await self._wait_until(lambda: self._life.is_settled)
        reason = self._failure()
        if reason is None and self._life.resolve() is None:
            reason = "it has no version: 1, 2, …" if self._life.is_wanted else "it was unloaded"
        if reason is not None:
            raise InvalidInput(f"failed to load {self.name!r}: {reason}")

    def unload(self) -> None:
        """Accept no more requests; those that have begun are finished."""
        self._life.dismiss()
        self._publish()
        self._tell()

    async def refresh(self) -> None:
        self.show(await run_in_thread(self._look))

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Share between the keys' tenants by `weights`, in every version."""
        for served in self._served.values():
            served.weigh(weights)

    # ---- what is

    @property
    def is_gone(self) -> bool:
        """Is nothing left of it, on disk or in memory?"""
        return self._listing is None and self._mistake is None and not self._served

    @property
    def is_callable(self) -> bool:
        exists = self._listing is not None or self._mistake is not None
        return exists and (self._life.is_wanted or self._life.is_on_request)

    @property
    def is_settled(self) -> bool:
        return self._life.is_settled

    @property
    def is_ready(self) -> bool:
        """Does it answer, as far as it is meant to? One that cannot be loaded counts only where it
        is required; the index says why it is not there."""
        answering = self._life.resolve()
        if answering is not None:
            return self._served[answering].is_ready
        if self._is_required and not self._life.is_on_request and self._failure() is not None:
            return not self._life.is_wanted  # unloaded on purpose
        return self.is_settled

    def readiness(self) -> list[VersionReadiness]:
        serving = self._life.serving()
        return [
            VersionReadiness(
                self.name,
                str(version),
                version in serving and self._served[serving[version]].is_ready,
            )
            for version in self._life.meant()
        ]

    @property
    def is_asked(self) -> bool:
        """Does it serve a request now, or did it a moment ago?"""
        return any(self._served[id_].is_asked for id_ in self._life.serving().values())

    @property
    def answers(self) -> bool:
        return self._life.resolve() is not None or (
            self._life.is_on_request and self._failure() is None
        )

    @property
    def is_listed(self) -> bool:
        """Does it answer, or will it? Not where it could not be loaded."""
        has_failed = self._failure() is not None and self._life.resolve() is None
        return self.is_callable and not has_failed

    def index(self) -> list[VersionEntry]:
        entries = [self._entry(each) for each in self._life.index()]
        if not entries and not self.is_gone:
            entries = [VersionEntry(self.name, "", "UNAVAILABLE", "it has no version: 1, 2, …")]
        if self._mistake is None:
            return entries
        return [dataclasses.replace(entry, reason=self._mistake) for entry in entries]

    def _entry(self, status: VersionStatus) -> VersionEntry:
        state, reason = _STATES[status.state], status.reason
        answering = self._life.resolve(status.version)
        if answering is not None and not self._served[answering].is_ready:
            state, reason = "UNAVAILABLE", self._served[answering].trouble or reason
        return VersionEntry(self.name, str(status.version), state, reason)  # type: ignore[arg-type]

    def why_not(self, version: str) -> HeadwayError | None:
        """Why it does not answer; None: it will, for a caller that waits."""
        answers = self._life.resolve() is not None
        if not self.is_callable or (version and not self._may_serve(version, answers=answers)):
            return unknown_model(self.name, version, self._registry.names())
        if not answers and self._failure() is not None:
            retry_s = self._life.retry_after_s(asyncio.get_running_loop().time())
            if retry_s is not None or self._mistake is not None or not self._life.is_on_request:
                return NotReady(
                    f"model {self.name!r} could not be loaded; the repository's index says why",
                    retry_after_s=retry_s or 60.0,
                )
        if self._life.is_on_request:
            return None
        return NotReady(f"model {self.name!r} is being loaded", retry_after_s=1.0)

    def _may_serve(self, version: str, *, answers: bool) -> bool:
        """Is it there, and loading, or will it be? Not while another answers in its place."""
        found = [each for each in self._life.index() if str(each.version) == version]
        return bool(found) and not (answers and found[0].state is None)

    async def wait_ready(self, version: str, timeout_s: float | None) -> ServedModel:
        """Wake it, and wait for it. All waiting callers share the one load."""
        assert self._listing is not None
        limit = self._listing.config.max_queue
        if self._waiting >= limit:
            raise QueueFull(f"{limit} requests wait for {self.name!r} already", limit=limit)
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await self._wait_ready(version)
        except TimeoutError:
            raise DeadlineExceeded(f"model {self.name!r} was not loaded in time") from None
        finally:
            self._waiting -= 1

    async def _wait_ready(self, version: str) -> ServedModel:
        while True:
            found = self._registry.find_ready(self.name, version)  # raises why not
            if found is not None:
                return found
            is_asleep = not self._life.is_wanted
            if is_asleep and self._life.wake(asyncio.get_running_loop().time()):
                self._tell()  # once: waiting callers wake with the news
            await self._news.wait()

    async def wait_settled(self) -> None:
        await self._wait_until(lambda: self.is_settled)

    def _failure(self) -> str | None:
        return self._mistake or self._life.failure()

    # ---- doing it

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            loop = asyncio.get_running_loop()
            while True:
                self._changed.clear()
                self._note_use(loop.time())
                match self._life.next_action(loop.time()):
                    case Load(id_, offer):
                        tasks.create_task(self._load(id_, offer))
                        self._tell()
                    case Retire(id_):
                        self._publish()  # first: from now on no request finds it
                        tasks.create_task(self._retire(id_))
                        self._tell()
                    case Wait(until):
                        await self._wait_for_change(until)

    async def close(self, drain_s: float) -> None:
        """Close the remaining versions, after `run` has ended."""
        self._registry.switch(self.name, None, ())
        await asyncio.gather(*(each.close(drain_s=drain_s) for each in self._served.values()))
        for served in self._served.values():
            _release(served)
        self._served.clear()

    async def _wait_for_change(self, until: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if until == float("inf") else until):
                await self._changed.wait()

    async def _load(self, id_: int, offer: Offer) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with self._turns.turn(f"{self.name} version {offer.version}") as turn:
                with self._logged_if_slow(offer):
                    served = await self._started(id_, offer, turn)
                    await self._check_unchanged(offer)
        except Exception as error:  # noqa: BLE001  the model is user code
            await self._failed(id_, offer, error)
            return
        self.error = None
        self._life.ready(id_, loop.time())
        self._publish()  # in one step: the next request is the new version's
        took_s = loop.time() - started
        _log.info("%s version %s is ready after %.1f s", self.name, served.version, took_s)
        self._tell()

    @contextmanager
    def _logged_if_slow(self, offer: Offer) -> Iterator[None]:
        """Log that the model loads, if that takes long: a silent terminal would look stuck."""
        timer = asyncio.get_running_loop().call_later(
            _SLOW_LOAD_S, _log.info, "%s version %s is loading", self.name, offer.version
        )
        try:
            yield
        finally:
            timer.cancel()

    async def _started(self, id_: int, offer: Offer, turn: Turn) -> "ManagedModel":
        listing = self._listing
        if listing is None or offer not in listing.offers:
            raise ConfigError("it was changed before it was loaded")
        try:
            async with asyncio.timeout(listing.config.load_timeout_s):
                version, origin = str(offer.version), listing.origins[offer.version]
                assert origin.make is not None, "what is listed can be made"
                model = await run_in_thread(origin.make)
                try:
                    served = self._make(listing.config, version, model, origin)
                except BaseException:
                    forget_module(model)
                    raise
                self._served[id_] = served
                served.observe(self._observe)
                await served.load()
                await turn.wait_alone()
                self._life.warming(id_)
                self._tell()
                await served.warm(self._beside(served))
        except TimeoutError as error:
            limit_s = listing.config.load_timeout_s
            raise ConfigError(f"not ready after {limit_s:g} s", field="load_timeout_s") from error
        return served

    def _observe(self, event: Event) -> None:
        if isinstance(event, Crashed):
            self._crashed(event)

    def _beside(self, served: "ManagedModel") -> Beside:
        answering = self._life.resolve()
        before = None if answering is None else self._served[answering]
        is_alike = before is not None and before.looks_like(served)
        return Beside(self._is_asked, before.costs if before is not None and is_alike else None)

    async def _check_unchanged(self, offer: Offer) -> None:
        """Files that changed meanwhile may have been read half old, half new."""
        listing = await run_in_thread(self._look)
        if listing is None or offer not in listing.offers:
            self.show(listing)
            raise ConfigError("its files changed while it was loaded")

    async def _failed(self, id_: int, offer: Offer, error: Exception) -> None:
        served = self._served.pop(id_, None)
        if served is not None:
            await self._ended(served, served.close(drain_s=0.0))
        reason = (
            str(error) if isinstance(error, HeadwayError) else f"{type(error).__name__}: {error}"
        )
        self.error = error
        self._life.failed(id_, reason, asyncio.get_running_loop().time())
        _log.log(
            logging.ERROR if self.logs_failures else logging.DEBUG,
            "%s version %d cannot be loaded: %s",
            self.name,
            offer.version,
            reason,
            exc_info=None if isinstance(error, HeadwayError) else error,
        )
        self._tell()

    async def _retire(self, id_: int) -> None:
        served = self._served[id_]
        # What can still answer has all the time its requests need; a dead version does not.
        drain_s = None if served.is_ready else self._drain_s()
        if await self._ended(served, served.retire(drain_s=drain_s)):
            is_replaced = self._life.resolve(int(served.version)) is not None
            what = "the former version" if is_replaced else "version"
            _log.info("%s %s %s is unloaded", self.name, what, served.version)
        del self._served[id_]
        self._life.closed(id_)
        self._tell()

    async def _ended(self, served: "ManagedModel", ending: Awaitable[None]) -> bool:
        """Wait for the end of a version that no request can find. Its errors do not stop others."""
        try:
            try:
                await ending
            finally:
                _release(served)
        except Exception:  # noqa: BLE001  the model is user code
            _log.exception("%s version %s did not end as it should", self.name, served.version)
            return False
        return True

    def _publish(self) -> None:
        answering = self._life.resolve()
        models = [self._served[id_] for id_ in self._life.serving().values()]
        self._registry.switch(
            self.name, None if answering is None else self._served[answering], models
        )

    def _note_use(self, now: float) -> None:
        for id_ in self._life.serving().values():
            served = self._served[id_]
            self._life.used(now if served.is_busy else now - served.idle_s)

    def _tell(self) -> None:
        self._changed.set()
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._news.wait()


def _release(served: "ManagedModel") -> None:
    """Its weights go now, not when the garbage collector comes round to a batcher's cycles."""
    forget_module(served.model)
    getattr(served.model, "__dict__", {}).clear()
