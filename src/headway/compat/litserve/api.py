"""`LitAPI` as a `headway.Model`: `setup`, `decode_request`, `batch`, `predict`, `unbatch`,
`encode_response`, and generators, which stream.

As in LitServe, `predict` takes one decoded request; with `max_batch_size` above 1, or in a class
with `batch`, it takes what that makes of several, and `unbatch` takes it apart again. A method with
an argument `context` gets a dict of its request's own; those that take a batch, a list of them.

If any method of a class takes `context`, every item that is queued and every result that is not an
error is a pair: the value and its request's context. Else both are the values alone.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headway.compat.litserve.options import check_members, check_options, checked_size
from headway.compat.litserve.refusals import own_refusal, refusing
from headway.errors import ConfigError, HeadwayError, ModelFailed
from headway.model import END, BatchesOnRequest, Model, holds_results

# Names that Headway has for methods of its own, which take other arguments.
_RENAMED = ("setup", "predict")
_USER_METHODS = (*_RENAMED, "decode_request", "batch", "unbatch", "encode_response")


class _Renamed:
    """A method with the name of one of Headway's own. On the class that it serves, Headway
    finds its own; `super()` in a class below finds the user's."""

    def __init__(self, kind: type, name: str, own: Callable[..., Any]) -> None:
        self._kind = kind
        self._name = name
        self._own = own
        found = vars(kind).get(name)  # one of these in a class that a decorator has made again
        # None: the class has it from a parent, or not at all.
        self.written: Any = found.written if isinstance(found, _Renamed) else found

    def __get__(self, instance: Any, owner: type) -> Any:
        if owner is self._kind:
            return self._own.__get__(instance, owner)
        if self.written is not None:
            return self.written.__get__(instance, owner)
        return getattr(super(self._kind, owner if instance is None else instance), self._name)


class LitAPI(Model[Any, Any], BatchesOnRequest):
    max_batch_size: int = 1
    device: str = "cpu"
    _streams: bool = False
    _stream_setting: Any = None  # `stream = True` in the class
    _context_takers: frozenset[str] = frozenset()
    _written: Mapping[str, Any] = {}  # the user's methods, also those of parents and mixins

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._written = written = {
            name: method for name in _USER_METHODS if (method := _written_in(cls, name)) is not None
        }
        cls._context_takers = frozenset(
            name for name, method in written.items() if _takes_context(method)
        )
        cls._streams = inspect.isgeneratorfunction(_function(written.get("predict")))
        stream = vars(cls).get("stream")
        if isinstance(stream, bool):
            cls._stream_setting = stream
        is_whole = "predict" in written and not cls._streams
        renamed = {"setup": Model.setup, "predict": cls._predict_all if is_whole else Model.predict}
        for name, own in renamed.items():
            setattr(cls, name, _Renamed(cls, name, own))
        replaced = {
            "stream": LitAPI._stream_all if cls._streams else Model.stream,
            "prepare": _around(cls, "decode_request", _decode, Model.prepare),
            "finish": Model.finish
            if cls._streams
            else _around(cls, "encode_response", _encode, Model.finish),
        }
        for name, method in replaced.items():
            setattr(cls, name, method)

    def __new__(cls, *arguments: Any, **options: Any) -> "LitAPI":
        """Here, and not in `__init__`, which users' classes override without calling ours."""
        for name, method in cls._written.items():
            function = _function(method)
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                raise ConfigError(
                    f"{name} of {cls.__name__} is `async def`, which headway.compat.litserve does "
                    f"not support. Write `def {name}`: it runs in a thread, where it may wait",
                    field=name,
                )
        check_members(cls)
        check_stream(cls, cls._stream_setting)
        return super().__new__(cls)

    def __init__(
        self, max_batch_size: int | None = None, batch_timeout: float = 0.0, **options: Any
    ) -> None:
        """Raises ConfigError for an option that would change what is served, and cannot here."""
        super().__init__()
        check_options(options)
        check_stream(type(self), options.get("stream"))
        if max_batch_size is not None:
            self.max_batch_size = checked_size(max_batch_size)

    @property
    def batcher_options(self) -> Mapping[str, Any]:
        """Defaults for the batcher; a flag or a configuration file takes precedence."""
        return {"max_batch_size": self.max_batch_size} if self.max_batch_size > 1 else {}

    def expect_batches(self, rows: int) -> None:
        self.max_batch_size = rows

    def setup(self, device: str = "") -> None:
        """Does nothing; lets a user's class call `super().setup(device)`."""

    def log(self, key: str, value: Any) -> None:
        """Does nothing, as in LitServe without loggers."""

    def load(self) -> None:
        check_members(self)  # also what a constructor has set
        if "setup" in self._written:
            self._method("setup")(self.device)

    def batch(self, inputs: Sequence[Any]) -> Any:
        """Tensors and arrays of one shape become one; anything else stays a list. (Where shapes
        differ, stacking raises, and the batch is run again in parts.)"""
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        first = inputs[0]
        if torch is not None and isinstance(first, torch.Tensor):
            return torch.stack(list(inputs))
        if numpy is not None and isinstance(first, numpy.ndarray):
            return numpy.stack(inputs)
        return list(inputs)

    def unbatch(self, output: Any) -> Any:
        if self._streams:  # each step is one entry for each request
            return map(list, output)
        is_list = isinstance(output, Iterator) or holds_results(output)
        return list(output) if is_list else output  # the batcher refuses it

    @property
    def _takes_batches(self) -> bool:
        return "batch" in self._written or self.max_batch_size > 1

    def _method(self, name: str) -> Any:
        if name in _RENAMED:
            return self._written[name].__get__(self, type(self))
        return getattr(self, name)

    def _call(self, name: str, value: Any, context: Any) -> Any:
        method = self._method(name)
        return method(value, context=context) if name in self._context_takers else method(value)

    def _parted(self, items: list[Any]) -> tuple[list[Any], list[Any]]:
        """The decoded values, and the requests' contexts."""
        if not self._context_takers:
            return items, [None] * len(items)
        return [value for value, _ in items], [context for _, context in items]

    def _predict_all(self, items: list[Any]) -> Any:
        values, contexts = self._parted(items)
        if self._takes_batches:
            results = self._predict_batch(values, contexts)
        else:
            results = [self._predict_one(*each) for each in zip(values, contexts, strict=True)]
        has_all = holds_results(results) and len(results) == len(items)
        if not self._context_takers or not has_all:
            return results  # without all results, the batcher refuses it
        return [
            result if isinstance(result, Exception) else (result, context)
            for result, context in zip(results, contexts, strict=True)
        ]

    def _predict_batch(self, values: list[Any], contexts: list[Any]) -> Any:
        with refusing():
            output = self._call("predict", self._call("batch", values, contexts), contexts)
            results = self._call("unbatch", output, contexts)
            return list(results) if isinstance(results, Iterator) else results

    def _predict_one(self, value: Any, context: Any) -> Any:
        """A refusal is a result: the others of the batch are not run again for it."""
        try:
            return self._call("predict", value, context)
        except Exception as error:  # user code
            refusal = own_refusal(error)
            if refusal is None:
                raise
            return refusal

    def _stream_all(self, items: list[Any]) -> Iterator[list[Any]]:
        values, contexts = self._parted(items)
        if self._takes_batches:
            with refusing():
                yield from self._stream_batch(values, contexts)
            return
        streams = [self._stream_one(*each) for each in zip(values, contexts, strict=True)]
        step: list[Any] = [None]
        while any(chunk is not END for chunk in step):
            step = [next(each, END) for each in streams]
            yield step

    def _stream_batch(self, values: list[Any], contexts: list[Any]) -> Iterator[list[Any]]:
        output = self._call("predict", self._call("batch", values, contexts), contexts)
        yield from map(list, self._chunks(self._call("unbatch", output, contexts), contexts))
        yield [END] * len(values)

    def _stream_one(self, value: Any, context: Any) -> Iterator[Any]:
        """One stream's chunks, ended by its error if the caller's request was refused: the batch's
        others go on."""
        try:
            yield from self._chunks(self._call("predict", value, context), context)
        except Exception as error:  # user code
            refusal = own_refusal(error)
            if refusal is None:
                raise
            yield refusal

    def _chunks(self, outputs: Any, context: Any) -> Any:
        has_encoder = "encode_response" in self._written
        return self._call("encode_response", outputs, context) if has_encoder else outputs


def check_stream(kind: type[LitAPI], stream: Any) -> None:
    """Raises ConfigError where the option contradicts what `predict` does."""
    if stream and not kind._streams:
        raise ConfigError(
            f"predict of {kind.__name__} must `yield` its answers to stream them", field="stream"
        )
    if stream is False and kind._streams:
        raise ConfigError(
            f"predict of {kind.__name__} yields its answers, which are streamed: `return` one",
            field="stream",
        )


# ---- the user's methods


def _written_in(kind: type, name: str) -> Any:
    """The user's method, of the class, a parent or a mixin; None: there is none."""
    for each in kind.__mro__[: kind.__mro__.index(LitAPI)]:
        found = vars(each).get(name)
        method = found.written if isinstance(found, _Renamed) else found
        if method is not None:
            return method
    return None


def _function(method: Any) -> Any:
    return method.__func__ if isinstance(method, staticmethod | classmethod) else method


def _takes_context(method: Any) -> bool:
    return "context" in inspect.signature(_function(method)).parameters


def _around(
    kind: type[LitAPI], name: str, call: Callable[..., Any], default: Callable[..., Any]
) -> Callable[..., Any]:
    """`call`, with the hints and the parameters of the user's method, which say what callers may
    send; `default` if the user has not written that method."""
    method = _function(kind._written.get(name))
    if method is None and not kind._context_takers:
        return default

    def called(self: Any, value: Any, **keywords: Any) -> Any:
        try:
            with refusing():
                return call(self, value, **keywords)
        except HeadwayError:
            raise
        except Exception as error:  # user code
            raise ModelFailed(f"{name} raised {type(error).__name__}: {error}") from error

    if method is None:
        return called
    wrapper: Any = called
    signature = inspect.signature(method)
    kept = [each for each in signature.parameters.values() if each.name != "context"]
    if isinstance(kind._written.get(name), staticmethod):  # `called` is a method: it has a `self`
        kept.insert(0, inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY))
    wrapper.__wrapped__ = method  # where hints are looked up
    wrapper.__annotations__ = dict(getattr(method, "__annotations__", {}))
    wrapper.__signature__ = signature.replace(parameters=kept)
    return called


def _decode(api: LitAPI, raw: Any, **keywords: Any) -> Any:
    if not api._context_takers:
        return api._method("decode_request")(raw, **keywords)
    context: dict[str, Any] = {}
    if "decode_request" not in api._written:
        return raw, context
    if "decode_request" in api._context_takers:
        keywords["context"] = context
    return api._method("decode_request")(raw, **keywords), context


def _encode(api: LitAPI, result: Any) -> Any:
    value, context = result if api._context_takers else (result, None)
    return api._chunks(value, context)
