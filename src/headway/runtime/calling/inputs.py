"""Reads the values of callers, before they are queued: checks, prepares and measures them."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict, cast

from headway.core.items import Priority
from headway.errors import ConfigError, InvalidInput
from headway.model import Model, TensorModel
from headway.runtime.calling.callbacks import Callbacks
from headway.runtime.calling.parameters import BatchKey, BatchParameters, Parameters
from headway.runtime.calling.runner import ModelRunner, TensorRunner

_NONE: Mapping[str, Any] = {}
_OTHER = object()  # equals no caller's value
_PRIORITIES = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}


class CallKeywords(TypedDict, total=False):
    """The keywords of a call: see `Batcher.submit`."""

    priority: Literal["high", "normal", "low"]
    deadline_ms: float | None
    tenant: str
    partition: Hashable
    parameters: Mapping[str, Any] | None


class CallOptions(NamedTuple):
    """All keywords of a call, with their defaults."""

    priority: str = "normal"
    deadline_ms: float | None = None
    tenant: str = ""
    partition: Hashable = None
    parameters: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: CallKeywords) -> "CallOptions":
        """Read the keywords. Raises TypeError that names an unknown one."""
        try:
            return cls(**given)
        except TypeError:
            unknown = [name for name in given if name not in cls._fields]
            raise TypeError(f"a call has no option {', '.join(map(repr, unknown))}") from None


class Input(NamedTuple):
    """One value, ready to be queued."""

    value: Any
    rows: int
    size: int
    priority: Priority
    partition: Hashable


class InputReader:
    """Reads the calls of one model. Everything it raises is an error of the call."""

    def __init__(self, model: Any, runner: ModelRunner, callbacks: Callbacks) -> None:
        self.parameters = _parameters(model, callbacks.prepare)
        # The result of `_taken` for a call without parameters.
        self._taken_plainly: tuple[Mapping[str, Any], BatchParameters | None] | None = None
        self._callbacks = callbacks
        self._runner = runner
        self._shape = runner.shape if isinstance(model, TensorModel) else None
        # User code runs on each.
        self.are_prepared = callbacks.prepare is not None or callbacks.size is not None
        has_more = callbacks.prepare or callbacks.size or callbacks.finish or self.parameters
        # A value is queued unchanged, and may share a batch with any other.
        self.is_simple = not has_more and self._shape is None
        self.is_uniform = self.is_simple or (  # so may a row that has been checked before
            isinstance(runner, TensorRunner)
            and runner.is_uniform
            and not runner.checks_inputs
            and not has_more
        )

    @property
    def knows_rows(self) -> bool:
        """Check the options before a value is prepared."""
        return self._shape is not None and self._callbacks.prepare is None

    def check_sizes(self) -> None:
        """Raise ConfigError if sizes are needed and no function gives them."""
        if self._callbacks.size is None and self._shape is None:
            raise ConfigError("needs a size: `size=`, or the model's own", field="max_batch_cost")

    def row(self, value: Any) -> Any | None:
        """One row of named arrays, ready to be queued, if `is_uniform`; None: there are more rows,
        or a mistake that `read` explains."""
        runner = cast(TensorRunner, self._runner)
        try:
            value = runner.plain(value)
            return value if runner.shape(value)[0] == 1 else None
        except InvalidInput:
            return None

    async def read(
        self, value: Any, options: CallOptions, deadline: float | None, *, streams: bool = False
    ) -> Input:
        """Raises InvalidInput, QueueFull, or the error of `prepare`."""
        rows, size = 1, 0
        priority, _, tenant, partition, parameters = options
        # First the values that the scheduler sorts by: they must be hashable and comparable.
        check_tenant(tenant)
        _check_hashable(partition)
        self._callbacks.check_room()
        keywords, shared = self._taken(parameters)
        if self.are_prepared:
            value, size = await self._callbacks.prepared(value, keywords, deadline)
        if self._shape is not None and not streams:
            value = cast(TensorRunner, self._runner).plain(value)
            rows, own_size, shape = self._shape(value)
            size = own_size if self._callbacks.size is None else size
            if shape is not None:
                partition = (shape, partition)
        if streams or shared is not None:
            partition = BatchKey(partition, streams=streams, parameters=shared)
        return Input(value, rows, size, priority_of(priority), partition)

    async def sized(self, sample: Any) -> tuple[int, Any]:
        """The size of a typical value, and what would be queued of it."""
        value, size = sample, 0
        if self.are_prepared:
            value, size = await self._callbacks.prepared(sample, self._taken(None)[0])
        if self._shape is not None and self._callbacks.size is None:
            size = self._shape(value)[1]
        return size, value

    def rows(self, value: Any) -> int:
        return 1 if self._shape is None else self._shape(value)[0]

    def check_parameters(self, given: Mapping[str, Any]) -> None:
        """Raises InvalidInput for a parameter that the model does not take."""
        if self.parameters is not None:
            self.parameters.check(given)
        elif given:
            name = next(iter(given))
            raise InvalidInput(f"parameter {name!r} is unknown; the model takes none")

    def _taken(
        self, given: Mapping[str, Any] | None
    ) -> tuple[Mapping[str, Any], BatchParameters | None]:
        """The parameters for `prepare`, and those that all items of the batch must share."""
        if not given and self._taken_plainly is not None:
            return self._taken_plainly
        if self.parameters is None and not given:
            return _NONE, None
        self.check_parameters(given or _NONE)
        assert self.parameters is not None
        shared = self.parameters.of_batch(given or _NONE)
        _check_hashable(shared, "a parameter that decides which calls share a batch")
        taken = self.parameters.of_item(given or _NONE), shared
        if not given:
            self._taken_plainly = taken
        return taken


def _parameters(model: object, prepare: Callable[..., Any] | None) -> Parameters | None:
    """None: it takes none. A plain function has no place to list what its batches share."""
    if not isinstance(model, Model | TensorModel):
        return None
    return Parameters(model, prepare) or None


def check_tenant(tenant: object) -> None:
    if not isinstance(tenant, str):
        raise InvalidInput(f"tenant must be a string, not {tenant!r}")


def priority_of(name: str) -> Priority:
    if isinstance(name, str) and name in _PRIORITIES:
        return _PRIORITIES[name]
    raise InvalidInput(f"priority {name!r} is not one of 'high', 'normal', 'low'")


def _check_hashable(value: object, what: str = "partition") -> None:
    """Raise InvalidInput if it is not hashable, or not comparable with other values."""
    must_be = "hashable"
    try:
        hash(value)
        must_be = "comparable with any value"
        bool(value == _OTHER)
    except Exception as error:  # user code; mostly a TypeError: a list, a dict, an array
        raise InvalidInput(f"{what} must be {must_be}: {error}") from error
