"""`LitServer`, so that a file's last lines can stay: `python file.py` serves its API."""

import inspect
import sys
from typing import Any

from headway.compat.litserve.api import LitAPI, check_stream
from headway.compat.litserve.options import check_members, check_options, checked_size
from headway.compat.litserve.program import telling_mistakes
from headway.errors import ConfigError

_DEVICES = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "mps": "mps"}


class LitServer:
    @telling_mistakes()
    def __init__(
        self,
        lit_api: LitAPI,
        accelerator: str = "auto",
        *,
        max_batch_size: int | None = None,
        timeout: float | bool | None = True,
        **options: Any,
    ) -> None:
        """Raises ConfigError for an option that would change what is served, and cannot here. In a
        file that is run as a program, the error is one line, and the program ends with 2."""
        if not isinstance(lit_api, LitAPI):
            raise ConfigError("an instance of one LitAPI is expected", field="lit_api")
        check_members(lit_api)
        check_options(options)
        check_stream(type(lit_api), options.get("stream"))
        self._api = lit_api
        self._settings: dict[str, Any] = {"grpc_port": -1}  # LitServe has none
        lit_api.device = _device(accelerator)
        if max_batch_size is not None:
            lit_api.max_batch_size = checked_size(max_batch_size)
        # LitServe: True is 30 s; None, False and -1 are no limit.
        if timeout is not None and timeout is not True and timeout > 0:
            self._settings["timeout_ms"] = timeout * 1e3

    def run(self, *, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
        """Serve until Ctrl-C. Raises ConfigError for an option as `LitServer` does, and in a file
        that runs this when it is imported. A server that cannot start, because its port is taken
        for example, says why in one line and ends the program with 2, as the command does."""
        self._check_run(options)
        from headway.wiring import serve

        try:
            serve(self._api, host=host, port=int(port), **self._settings)
        except ConfigError as error:
            sys.stderr.write(f"headway: {error}\n")
            sys.exit(2)

    @telling_mistakes()
    def _check_run(self, options: dict[str, Any]) -> None:
        check_options(options)
        if _is_importing():  # as `headway serve file.py` does, and each worker process
            raise ConfigError(
                'the file starts a server when it is imported; write `if __name__ == "__main__":` '
                f"above {type(self).__name__}(…).run(…)"
            )


def _device(accelerator: str) -> str:
    """The device under LitServe's name for `setup`; `auto`: a GPU, if the file has imported
    torch."""
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
