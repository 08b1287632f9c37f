"""`headway.ray.Predict`: a model over a dataset of Ray Data, with no batch size to choose.

Ray hands over whole blocks; what runs together is planned here, by length and learned batch times.
"""

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy

from headway.errors import ConfigError
from headway.wiring import MountedApplication, asgi

_AHEAD: Final = 64  # batches that a plan chooses from


class Predict:
    """For `Dataset.map_batches(headway.ray.Predict, batch_size=None, …)`.

    Each row's `input` goes through the model, and its result into the column `output`, in the order
    of the rows. A row that fails has no result, and its error's text in the column `error`, which
    is empty for the others. A batch that does not fit into memory is cut and run again.
    """

    def __init__(
        self,
        target: Any,
        *,
        input: str = "text",  # noqa: A002  a column's name reads best so
        output: str = "prediction",
        error: str = "error",
        **settings: Any,
    ) -> None:
        """`target` and `settings` as for `headway.asgi`."""
        self._input, self._output, self._error = input, output, error
        most = int(settings.get("max_batch_size", 64)) * int(settings.get("workers", 1))
        settings.setdefault("max_queue", _AHEAD * most)
        self._app: MountedApplication = asgi(target, **settings)
        names = list(self._app.models)
        if len(names) != 1:
            raise ConfigError(f"one model is expected, not {', '.join(names)}", field="target")
        self._name = names[0]
        self._loop = asyncio.new_event_loop()
        run = self._loop.run_forever
        self._thread = threading.Thread(target=run, name="headway-predict", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._app.start(), self._loop).result()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if self._input not in batch:
            there = ", ".join(batch)
            raise ConfigError(f"there is no column {self._input!r}; there are: {there}")
        values = _values(batch[self._input])
        mapped = self._app.map(self._name, values)
        found = asyncio.run_coroutine_threadsafe(mapped, self._loop).result()
        errors = [str(each) if isinstance(each, Exception) else "" for each in found]
        results = [None if isinstance(each, Exception) else _plain(each) for each in found]
        return {**batch, self._output: _column(results), self._error: _column(errors)}

    def close(self) -> None:
        """Release the model. Ray ends the process instead."""
        asyncio.run_coroutine_threadsafe(self._app.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _values(column: Iterable[Any]) -> list[Any]:
    """The values as the model's hints have them: numbers and texts of Python, arrays as arrays."""
    return [each.item() if isinstance(each, numpy.generic) else each for each in column]


def _plain(result: Any) -> Any:
    """Lists instead of arrays, so that every block's column has one type in Arrow."""
    return result.tolist() if isinstance(result, numpy.ndarray | numpy.generic) else result


def _column(values: Sequence[Any]) -> Any:
    column = numpy.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column
