"""Decide which versions of one model to load and unload, and which of them answers.

Pure: no files, no clock. What is offered (on disk), wanted (by the operator or by a request) and
has happened comes in; `Load` and `Retire` go out. A version is replaced only by one that is ready:
until then, and if that fails, the old one answers.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from headway.core.items import Wait

NOT_CHOSEN = "not chosen by the version policy"
RETRY_S = (5.0, 30.0, 180.0)  # after a failed load; later only on request, or after a change


class VersionState(Enum):
    """The state of one loaded copy of a version."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which of the offered versions are to be served."""

    latest: int | None = 1  # how many of the highest numbers; None: all
    listed: tuple[int, ...] = ()  # these, and no others

    def choose(self, versions: Iterable[int]) -> tuple[int, ...]:
        """Highest first."""
        there = sorted(set(versions), reverse=True)
        if self.listed:
            return tuple(version for version in there if version in self.listed)
        return tuple(there[: self.latest])


@dataclass(frozen=True, slots=True)
class Offer:
    """A version that could be loaded. The fingerprint changes with its files and settings."""

    version: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load this version, as a new copy with this id; then call `ready` or `failed`."""

    id: int
    offer: Offer


@dataclass(frozen=True, slots=True)
class Retire:
    """Finish the work of this copy, which gets no new requests; close it; call `closed`."""

    id: int


VersionAction: TypeAlias = Load | Retire | Wait


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """One line of the index. `state` None: not loaded."""

    version: int
    state: VersionState | None
    reason: str = ""


@dataclass(slots=True)
class _Copy:
    id: int
    offer: Offer
    state: VersionState = VersionState.LOADING
    is_dead: bool = False  # it no longer answers, and is to be replaced

    @property
    def is_starting(self) -> bool:
        return self.state in (VersionState.LOADING, VersionState.WARMING)


@dataclass(frozen=True, slots=True)
class _Failure:
    offer: Offer
    reason: str
    attempts: int
    retry_at: float


class Lifecycle:
    """The versions of one model. After every event, call `next_action` until it returns `Wait`."""

    def __init__(
        self,
        policy: VersionPolicy | None = None,
        *,
        is_on_request: bool = False,
        unload_after_s: float | None = None,
    ) -> None:
        self._policy = policy or VersionPolicy()
        self._is_on_request = is_on_request
        self._unload_after_s = unload_after_s
        self._offers: dict[int, Offer] = {}
        self._copies: dict[int, _Copy] = {}  # by id, which grows with each copy
        self._failures: dict[int, _Failure] = {}  # by version: its last load, if that failed
        self._is_wanted = False
        self._last_used = -math.inf
        self._last_id = 0

    # ---- what happens

    def configure(
        self, policy: VersionPolicy, *, is_on_request: bool, unload_after_s: float | None
    ) -> None:
        self._policy = policy
        self._is_on_request = is_on_request
        self._unload_after_s = unload_after_s

    def offer(self, offers: Collection[Offer]) -> None:
        """These versions are on disk now."""
        self._offers = {offer.version: offer for offer in offers}
        self._failures = {
            version: failure
            for version, failure in self._failures.items()
            if self._offers.get(version) == failure.offer
        }

    def want(self) -> None:
        """Load the model if it is not loaded. Failed loads are tried again at once."""
        self._is_wanted = True
        self._failures.clear()

    def wake(self, now: float) -> bool:
        """A request needs the model. False: a load has failed, and it is too early for another."""
        if self._is_wanted:
            return True
        if any(now < self._failed_until(version) for version in self._chosen()):
            return False
        self._is_wanted = True
        self._last_used = now
        return True

    def dismiss(self) -> None:
        """Unload the model."""
        self._is_wanted = False

    def used(self, at: float) -> None:
        self._last_used = max(self._last_used, at)

    def warming(self, id_: int) -> None:
        self._copies[id_].state = VersionState.WARMING

    def ready(self, id_: int, now: float) -> None:
        copy = self._copies[id_]
        copy.state = VersionState.READY
        self._failures.pop(copy.offer.version, None)
        self._last_used = max(self._last_used, now)

    def failed(self, id_: int, reason: str, now: float) -> None:
        """The copy could not be loaded or warmed up, and is closed."""
        offer = self._copies.pop(id_).offer
        before = self._failures.get(offer.version)
        attempts = 1 if before is None or before.offer != offer else before.attempts + 1
        pause_s = RETRY_S[min(attempts, len(RETRY_S)) - 1]
        if self._offers.get(offer.version) == offer:
            self._failures[offer.version] = _Failure(offer, reason, attempts, now + pause_s)
        if self._is_on_request and not self._ready():
            self._is_wanted = False  # the next request may try again

    def died(self, id_: int) -> None:
        """A ready copy no longer completes work: the same version is loaded again to replace it."""
        self._copies[id_].is_dead = True

    def closed(self, id_: int) -> None:
        """A retired copy is closed."""
        del self._copies[id_]

    # ---- what to do

    def next_action(self, now: float) -> VersionAction:
        idle_at = self._idle_at()
        if now >= idle_at:
            self._is_wanted, idle_at = False, math.inf
        for copy in self._copies.values():
            if copy.state is VersionState.READY and self._is_superfluous(copy):
                copy.state = VersionState.DRAINING
                return Retire(copy.id)
        until = idle_at
        if self._is_wanted and not any(copy.is_starting for copy in self._copies.values()):
            for version in self._chosen():
                offer = self._offers[version]
                if self._has(offer):
                    continue
                at = self._load_at(version)
                if at <= now:
                    return self._load(offer)
                until = min(until, at)
        return Wait(until)

    def _load(self, offer: Offer) -> Load:
        self._last_id += 1
        self._copies[self._last_id] = _Copy(self._last_id, offer)
        return Load(self._last_id, offer)

    def _load_at(self, version: int) -> float:
        failure = self._failures.get(version)
        if failure is None:
            return -math.inf
        gave_up = failure.attempts > len(RETRY_S) and not self._is_on_request
        return math.inf if gave_up else failure.retry_at

    def _failed_until(self, version: int) -> float:
        failure = self._failures.get(version)
        return -math.inf if failure is None else failure.retry_at

    def _is_superfluous(self, copy: _Copy) -> bool:
        if not self._is_wanted:
            return True
        version, chosen = copy.offer.version, self._chosen()
        ready = self._ready()
        if any(other.offer.version == version and other.id > copy.id for other in ready):
            return True
        if version in chosen:
            return False
        served = {other.offer.version for other in ready}
        return all(each in served for each in chosen)  # and not before: it may be all there is

    def _idle_at(self) -> float:
        if self._unload_after_s is None or not self._is_wanted or not self._ready():
            return math.inf
        if any(copy.is_starting for copy in self._copies.values()):
            return math.inf
        return self._last_used + self._unload_after_s

    # ---- which version answers

    @property
    def is_wanted(self) -> bool:
        return self._is_wanted

    @property
    def is_on_request(self) -> bool:
        return self._is_on_request

    @property
    def is_settled(self) -> bool:
        """Is each version to be served ready or failed?"""
        return not self._is_wanted or (
            not any(copy.is_starting for copy in self._copies.values())
            and all(
                version in self._failures or self._has(self._offers[version])
                for version in self._chosen()
            )
        )

    def resolve(self, version: int | None = None) -> int | None:
        """The id of the copy that answers: the newest that is ready. None: there is none."""
        if not self._is_wanted:
            return None
        ready = self._ready()
        if version is not None:
            return max((copy.id for copy in ready if copy.offer.version == version), default=None)
        chosen = self._chosen()
        best = max(
            ready,
            key=lambda copy: (copy.offer.version in chosen, copy.offer.version, copy.id),
            default=None,
        )
        return None if best is None else best.id

    def serving(self) -> dict[int, int]:
        """The id of the copy that answers, by version."""
        versions = {copy.offer.version for copy in self._ready()}
        found = {version: self.resolve(version) for version in sorted(versions)}
        return {version: id_ for version, id_ in found.items() if id_ is not None}

    def index(self) -> list[VersionStatus]:
        """The status of every offered or running version, lowest first."""
        versions = {*self._offers, *(copy.offer.version for copy in self._copies.values())}
        return [self._status(version) for version in sorted(versions)]

    def meant(self) -> list[int]:
        """The versions that are served, or are to be served."""
        wanted = self._chosen() if self._is_wanted else ()
        return sorted({*wanted, *self.serving()})

    def failure(self) -> str | None:
        """Why no version answers, if a load has failed."""
        reasons = [self._failures[each].reason for each in self._chosen() if each in self._failures]
        return reasons[0] if reasons else None

    def retry_after_s(self, now: float) -> float | None:
        """The seconds until the next attempt, if a load has failed and will be tried again."""
        times = [self._failed_until(version) for version in self._chosen()]
        later = max((time for time in times if time > now), default=None)
        return None if later is None else later - now

    def _status(self, version: int) -> VersionStatus:
        copies = [copy for copy in self._copies.values() if copy.offer.version == version]
        failure = self._failures.get(version)
        answers = self.resolve(version)
        if answers is not None:
            reason = "" if failure is None else f"the last reload failed: {failure.reason}"
            return VersionStatus(version, VersionState.READY, reason)
        for state in (
            VersionState.WARMING,
            VersionState.LOADING,
            VersionState.READY,
            VersionState.DRAINING,
        ):
            if any(copy.state is state for copy in copies):
                is_leaving = state in (VersionState.READY, VersionState.DRAINING)
                return VersionStatus(version, VersionState.DRAINING if is_leaving else state)
        if failure is not None:
            return VersionStatus(version, None, failure.reason)
        return VersionStatus(version, None, self._why_not_loaded(version))

    def _why_not_loaded(self, version: int) -> str:
        if version not in self._chosen():
            return NOT_CHOSEN
        if self._is_wanted:
            return "waits to be loaded"
        return "loads on the first request" if self._is_on_request else "unloaded"

    def _chosen(self) -> tuple[int, ...]:
        return self._policy.choose(self._offers)

    def _has(self, offer: Offer) -> bool:
        return any(
            copy.offer == offer and copy.state is not VersionState.DRAINING and not copy.is_dead
            for copy in self._copies.values()
        )

    def _ready(self) -> list[_Copy]:
        return [copy for copy in self._copies.values() if copy.state is VersionState.READY]
