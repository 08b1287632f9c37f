"""`LitAPI` as a `headway.Model`: `setup`, `decode_request`, `batch`, `predict`, `unbatch`,
`encode_response`, and generators, which stream.

As there, `predict` takes one decoded request; a class with `batch` (or with `max_batch_size` above
1) takes what that makes of several, and `unbatch` takes it apart again.
"""

import inspect
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from headway.errors import ConfigError
from headway.model import END, Model

_THEIRS = ("setup", "predict", "encode_response")
# What they tune there is learned here, or has no counterpart that a caller could notice.
_NEEDLESS = frozenset(
    [
        *("api_server_worker_type", "batch_timeout", "fast_queue", "generate_client_file"),
        *("log_level", "num_api_servers", "pretty_logs", "stream", "track_requests"),
    ]
)
_DEVICES = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "mps": "mps"}


class LitAPI(Model[Any, Any]):
    max_batch_size: int = 1
    device: str = "cpu"

    def __init_subclass__(cls, **options: Any) -> None:
        """Their methods move aside, to make room for those of our names."""
        super().__init_subclass__(**options)
        for name in _THEIRS:
            if name in cls.__dict__:
                setattr(cls, f"_their_{name}", cls.__dict__[name])
        theirs: Any = cls
        theirs.setup = Model.setup
        theirs.prepare = getattr(cls, "decode_request", Model.prepare)
        if inspect.isgeneratorfunction(getattr(cls, "_their_predict", None)):
            theirs.predict, theirs.stream = Model.predict, LitAPI._stream_all
        else:
            theirs.predict = LitAPI._predict_all
            theirs.finish = getattr(cls, "_their_encode_response", Model.finish)

    def load(self) -> None:
        setup = getattr(self, "_their_setup", None)
        if setup is not None:
            setup(self.device)

    def batch(self, inputs: Sequence[Any]) -> Any:
        return list(inputs)

    def unbatch(self, output: Any) -> Sequence[Any]:
        return list(output)

    def _predict_all(self, items: list[Any]) -> Sequence[Any]:
        predict: Any = self._their_predict  # type: ignore[attr-defined]
        kind = type(self)
        if kind.batch is not LitAPI.batch or self.max_batch_size > 1:
            return self.unbatch(predict(self.batch(items)))
        return [predict(item) for item in items]

    def _stream_all(self, items: list[Any]) -> Iterator[list[Any]]:
        predict: Any = self._their_predict  # type: ignore[attr-defined]
        encode: Any = getattr(self, "_their_encode_response", iter)
        streams = [iter(encode(predict(item))) for item in items]
        step: list[Any] = [None]
        while any(chunk is not END for chunk in step):
            step = [next(each, END) for each in streams]
            yield step


class LitServer:
    """So that a file's last lines can stay: `python file.py` serves its API."""

    def __init__(
        self,
        api: LitAPI,
        accelerator: str = "auto",
        *,
        max_batch_size: int = 0,
        timeout: float | bool = True,
        **options: Any,
    ) -> None:
        """Raises ConfigError for an option that would change what is served, and cannot here."""
        _check(options)
        self._api = api
        self._settings: dict[str, Any] = {}
        api.device = _device(accelerator)
        if max_batch_size > 1:
            self._settings["max_batch_size"] = max_batch_size
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

        serve(self._api, host=host, port=port, **self._settings)


def _check(options: dict[str, Any]) -> None:
    """`None` and `False` ask for nothing."""
    for name, value in options.items():
        if name not in _NEEDLESS and value is not None and value is not False:
            raise ConfigError(
                "is not among LitServe's options that work here; the guide 'From LitServe' names "
                "what takes its place",
                field=name,
            )


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
