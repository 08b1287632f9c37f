"""`LitAPI` as a `headway.Model`: `setup`, `decode_request`, `batch`, `predict`, `unbatch`,
`encode_response`, and generators, which stream.

As there, `predict` takes one decoded request; with `max_batch_size` above 1, or in a class with
`batch`, it takes what that makes of several, and `unbatch` takes it apart again. A method with an
argument `context` gets a dict of its request's own; those that take a batch, a list of them.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from headway.errors import (
    ConfigError,
    Forbidden,
    HeadwayError,
    InvalidInput,
    ModelFailed,
    Poison,
    QuotaExceeded,
    RequestError,
    Unauthenticated,
    UnknownModel,
)
from headway.model import END, Model

_THEIRS = ("setup", "predict")
_METHODS = (*_THEIRS, "decode_request", "batch", "unbatch", "encode_response")
# What they tune there is learned here, or has no counterpart that a caller could notice.
_NEEDLESS = frozenset(
    [
        *("api_server_worker_type", "batch_timeout", "fast_queue", "generate_client_file"),
        *("log_level", "num_api_servers", "pretty_logs", "stream", "track_requests"),
    ]
)
# Asks for what is served anyway.
_HARMLESS: Mapping[str, Sequence[Any]] = {
    "api_path": ("/predict",),
    "devices": (1, "auto"),
    "healthcheck_path": ("/health",),
    "loop": ("auto",),
    "workers_per_device": (1,),
}
_NO_LISTS = (str, bytes, Mapping, Set)
_DEVICES = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "mps": "mps"}


class LitAPI(Model[Any, Any]):
    max_batch_size: int = 1
    device: str = "cpu"
    _context_takers: frozenset[str] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        """Their methods move aside, to make room for those of our names."""
        super().__init_subclass__(**options)
        for name in _THEIRS:
            if name in cls.__dict__:
                setattr(cls, f"_their_{name}", cls.__dict__[name])
        theirs: Any = cls
        theirs._context_takers = frozenset(name for name in _METHODS if _takes_context(cls, name))
        theirs.setup = Model.setup
        has_context = bool(cls._context_takers)
        theirs.prepare = _around(cls, "decode_request", _decode, Model.prepare, always=has_context)
        if inspect.isgeneratorfunction(getattr(cls, "_their_predict", None)):
            theirs.predict, theirs.stream = Model.predict, LitAPI._stream_all
            theirs.finish = Model.finish
        else:
            theirs.predict, theirs.stream = LitAPI._predict_all, Model.stream
            theirs.finish = _around(
                cls, "encode_response", _encode, Model.finish, always=has_context
            )

    def __new__(cls, *arguments: Any, **options: Any) -> "LitAPI":
        """Here, and not in `__init__`, which their classes override without calling ours."""
        for name in _METHODS:
            method = _written(cls, name)
            if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                raise ConfigError(
                    f"{name} of {cls.__name__} is `async def`, which is not among what works here "
                    f"of LitServe's. Write `def {name}`: it runs in a thread, where it may wait",
                    field=name,
                )
        return super().__new__(cls)

    def __init__(
        self, max_batch_size: int | None = None, batch_timeout: float = 0.0, **options: Any
    ) -> None:
        """Raises ConfigError for an option that would change what is served, and cannot here."""
        super().__init__()
        _check(options)
        _check_stream(self, options.get("stream"))
        if max_batch_size is not None:
            self.max_batch_size = _checked_size(max_batch_size)

    @property
    def batcher_options(self) -> Mapping[str, Any]:
        """For the code that makes the batcher; a flag or a file that says more goes first."""
        return {"max_batch_size": self.max_batch_size} if self.max_batch_size > 1 else {}

    def expect_batches(self, rows: int) -> None:
        """A flag or a file has set the batch size."""
        self.max_batch_size = rows

    def load(self) -> None:
        setup = getattr(self, "_their_setup", None)
        if setup is not None:
            setup(self.device)

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
        if inspect.isgenerator(output):  # a step of a stream each
            steps: Iterator[Any] = output
            return map(list, steps)
        # A text or a dict is no list of results: who called refuses it.
        return output if isinstance(output, _NO_LISTS) else list(output)

    @property
    def _takes_batches(self) -> bool:
        return type(self).batch is not LitAPI.batch or self.max_batch_size > 1

    def _call(self, name: str, value: Any, context: Any) -> Any:
        method = getattr(self, f"_their_{name}" if name in _THEIRS else name)
        return method(value, context=context) if name in self._context_takers else method(value)

    def _parted(self, items: list[Any]) -> tuple[list[Any], list[Any]]:
        """What was decoded, and the requests' contexts."""
        if not self._context_takers:
            return items, [None] * len(items)
        return [value for value, _ in items], [context for _, context in items]

    def _predict_all(self, items: list[Any]) -> Any:
        values, contexts = self._parted(items)
        if self._takes_batches:
            results = self._predict_batch(values, contexts)
        else:
            results = [self._predict_one(*each) for each in zip(values, contexts, strict=True)]
        if not self._context_takers or not _has_one_each(results, len(items)):
            return results  # what is no list of results is refused by who called
        return [
            result if isinstance(result, Exception) else (result, context)
            for result, context in zip(results, contexts, strict=True)
        ]

    def _predict_batch(self, values: list[Any], contexts: list[Any]) -> Any:
        try:
            output = self._call("predict", self._call("batch", values, contexts), contexts)
            results = self._call("unbatch", output, contexts)
        except Exception as error:  # user code
            _raise_request_error(error)
            raise
        return list(results) if isinstance(results, Iterator) else results

    def _predict_one(self, value: Any, context: Any) -> Any:
        """A refusal is a result: the others of the batch are not run again for it."""
        try:
            return self._call("predict", value, context)
        except RequestError as error:
            return error
        except Exception as error:  # user code
            refusal = _request_error(error)
            if refusal is None:
                raise
            return refusal

    def _stream_all(self, items: list[Any]) -> Iterator[list[Any]]:
        try:
            yield from self._steps(*self._parted(items))
        except Exception as error:  # user code
            _raise_request_error(error)
            raise

    def _steps(self, values: list[Any], contexts: list[Any]) -> Iterator[list[Any]]:
        if self._takes_batches:
            output = self._call("predict", self._call("batch", values, contexts), contexts)
            yield from map(list, self._chunks(self._call("unbatch", output, contexts), contexts))
            yield [END] * len(values)
            return
        streams = [
            iter(self._chunks(self._call("predict", value, context), context))
            for value, context in zip(values, contexts, strict=True)
        ]
        step: list[Any] = [None]
        while any(chunk is not END for chunk in step):
            step = [next(each, END) for each in streams]
            yield step

    def _chunks(self, outputs: Any, context: Any) -> Any:
        has_encoder = hasattr(self, "encode_response")
        return self._call("encode_response", outputs, context) if has_encoder else outputs


# ---- their methods under our names


def _has_one_each(results: Any, rows: int) -> bool:
    is_list = hasattr(results, "__len__") and not isinstance(results, _NO_LISTS)
    return is_list and len(results) == rows


def _written(kind: type, name: str) -> Any:
    """Theirs, where a class has it; None: it has not."""
    found = getattr(kind, f"_their_{name}" if name in _THEIRS else name, None)
    return None if found is getattr(LitAPI, name, None) else found


def _takes_context(kind: type, name: str) -> bool:
    method = _written(kind, name)
    return method is not None and "context" in inspect.signature(method).parameters


def _around(
    kind: type,
    name: str,
    call: Callable[..., Any],
    default: Callable[..., Any],
    *,
    always: bool,
) -> Callable[..., Any]:
    """`call`, with the hints and the parameters of the method that it calls: they say what
    callers may send."""
    method = _written(kind, name)
    if method is None and not always:
        return default

    def called(self: Any, value: Any, **keywords: Any) -> Any:
        try:
            return call(self, value, keywords)
        except HeadwayError:
            raise
        except Exception as error:  # user code
            _raise_request_error(error)
            raise ModelFailed(f"{name} raised {type(error).__name__}: {error}") from error

    if method is None:
        return called
    wrapper: Any = called
    signature = inspect.signature(method)
    kept = [each for each in signature.parameters.values() if each.name != "context"]
    wrapper.__wrapped__ = method  # where hints are looked up
    wrapper.__annotations__ = dict(getattr(method, "__annotations__", {}))
    wrapper.__signature__ = signature.replace(parameters=kept)
    return called


def _decode(api: LitAPI, raw: Any, keywords: Mapping[str, Any]) -> Any:
    decode: Any = getattr(api, "decode_request", None)
    if not api._context_takers:
        return decode(raw, **keywords)
    context: dict[str, Any] = {}
    if "decode_request" in api._context_takers:
        keywords = {**keywords, "context": context}
    return (raw if decode is None else decode(raw, **keywords)), context


def _encode(api: LitAPI, result: Any, keywords: Mapping[str, Any]) -> Any:
    value, context = result if api._context_takers else (result, None)
    return (
        api._call("encode_response", value, context) if hasattr(api, "encode_response") else value
    )


# ---- errors that are the caller's


class NotFound(UnknownModel):
    """The model's own 404: what was asked for is not in it."""

    code = "not_found"


class Unprocessable(Poison):
    """The model's own 422. (A kind of Poison, because that is the error with this status.)"""

    code = "unprocessable"


_REFUSALS: Mapping[int, Callable[[str], HeadwayError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    422: Unprocessable,
    429: QuotaExceeded,
}


def _raise_request_error(error: Exception) -> None:
    refusal = _request_error(error)
    if refusal is not None:
        raise refusal from error


def _request_error(error: Exception) -> HeadwayError | None:
    """What FastAPI's HTTPException says of the request, known by its attributes: neither FastAPI
    nor Starlette need be there. None: it says nothing of it."""
    status, detail = getattr(error, "status_code", None), getattr(error, "detail", None)
    if type(status) is not int or not 400 <= status <= 499:
        return None
    text = detail if isinstance(detail, str) else json.dumps(detail, default=str)
    refusal = _REFUSALS.get(status, InvalidInput)(text)
    refusal.__cause__ = error
    return refusal


# ---- their server


class LitServer:
    """So that a file's last lines can stay: `python file.py` serves its API."""

    def __init__(
        self,
        lit_api: LitAPI,
        accelerator: str = "auto",
        *,
        max_batch_size: int | None = None,
        timeout: float | bool = True,
        **options: Any,
    ) -> None:
        """Raises ConfigError for an option that would change what is served, and cannot here."""
        if not isinstance(lit_api, LitAPI):
            raise ConfigError("an instance of one LitAPI is expected", field="lit_api")
        _check(options)
        _check_stream(lit_api, options.get("stream"))
        self._api = lit_api
        self._settings: dict[str, Any] = {"grpc_port": -1}  # they have none
        lit_api.device = _device(accelerator)
        if max_batch_size is not None:
            lit_api.max_batch_size = _checked_size(max_batch_size)
        if timeout is not True and timeout > 0:  # theirs: True is 30 s, False and -1 no limit
            self._settings["timeout_ms"] = timeout * 1e3

    def run(self, *, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
        """Until Ctrl-C. Raises ConfigError as `LitServer` does."""
        _check(options)
        if _is_importing():  # as `headway serve file.py` does, and each worker process
            raise ConfigError(
                'the file starts a server when it is imported; write `if __name__ == "__main__":` '
                f"above {type(self).__name__}(…).run(…)"
            )
        from headway.wiring import serve

        try:
            serve(self._api, host=host, port=int(port), **self._settings)
        except ConfigError as error:  # as the command does: a port that is taken
            sys.stderr.write(f"headway: {error}\n".replace("--port", "run(port=…)"))
            sys.exit(2)


def _check(options: Mapping[str, Any]) -> None:
    """`None` and `False` ask for nothing."""
    for name, value in options.items():
        asks = value is not None and value is not False and value not in _HARMLESS.get(name, ())
        if name not in _NEEDLESS and asks:
            raise ConfigError(
                "is not among LitServe's options that work here; the guide 'From LitServe' names "
                "what takes its place",
                field=name,
            )


def _check_stream(api: LitAPI, stream: Any) -> None:
    if stream and type(api).predict is not Model.predict:
        raise ConfigError(
            f"predict of {type(api).__name__} must `yield` its answers to stream them",
            field="stream",
        )


def _checked_size(rows: Any) -> int:
    if type(rows) is not int or rows < 1:
        raise ConfigError(
            f"a whole number of at least 1 is expected, not {rows!r}", field="max_batch_size"
        )
    return rows


def _device(accelerator: str) -> str:
    """As LitServe names it to `setup`; `auto`: a GPU, where the file has imported torch."""
    if accelerator == "auto":
        torch = sys.modules.get("torch")
        return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
    if accelerator not in _DEVICES:
        known = ", ".join(["auto", *_DEVICES])
        raise ConfigError(f"{accelerator!r} is not one of {known}", field="accelerator")
    return _DEVICES[accelerator]


def _is_importing() -> bool:
    """Whether it is a file's import that has come here, not the program itself."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False
