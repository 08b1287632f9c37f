"""How log lines look, and the line that each request gets where access logs are on."""

import contextvars
import datetime
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from headway.core.items import Item
from headway.observe.following import Following
from headway.runtime.events import BatchFinished, ObservedBatcher

access = logging.getLogger("headway.access")
CANCELLED = 499  # nginx's word for a client that left

_USUAL = frozenset(vars(logging.makeLogRecord({})))
_COMPUTED = frozenset(["message", "asctime", "taskName"])


def configure(*, format: str, level: str) -> None:  # noqa: A002 - as the setting is called
    """Make this process log to stderr, unless it logs somewhere already. For commands only."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    access.setLevel(logging.INFO)  # on or off is a setting of its own


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """The fields given as `extra`."""
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _USUAL and name not in _COMPUTED
    }


class TextFormatter(logging.Formatter):
    """Formats logs for people: time, message and place in a line, followed by extras as
    name=value."""

    default_msec_format = "%s.%03d"  # a point, as in every other place where we write seconds

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        pairs = (f" {name}={_one_word(value)}" for name, value in extras(record).items())
        return super().formatMessage(record) + "".join(pairs)


class JsonFormatter(logging.Formatter):
    """Formats logs for programs: an object for each line, with extras as its fields."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _one_word(value: object) -> str:
    text = str(value)
    # What a client sent must not look like a line, or a field, of its own.
    return text if text.isprintable() and " " not in text and text else json.dumps(text)


class LoggedRequest:
    """A request under way, and its line in the log."""

    def __init__(self, *, request_id: str, method: str, path: str) -> None:
        self.id = request_id
        self.model = ""
        self.code = ""  # the error's word
        self._method = method
        self._path = path
        self._batch: dict[str, Any] = {}
        self._started = time.perf_counter()

    def was_in(self, event: BatchFinished, item: Item) -> None:
        batch, self.model = event.batch, event.model
        self._batch = {
            "batch": batch.id,
            "queued_ms": round(batch.queued_s(item) * 1e3, 3),
            "lingered_ms": round(batch.lingered_s(item) * 1e3, 3),
            "ran_ms": round(event.ran_s * 1e3, 3),
        }

    def log(self, status: int | str) -> None:
        fields: dict[str, Any] = {
            "id": self.id,
            "method": self._method,
            "path": self._path,
            "model": self.model or None,
            "status": status,
            "code": self.code or None,
            "ms": round((time.perf_counter() - self._started) * 1e3, 3),
            **self._batch,
        }
        present = {name: value for name, value in fields.items() if value is not None}
        access.info("request", extra=present)


_current: contextvars.ContextVar[LoggedRequest | None] = contextvars.ContextVar(
    "headway_logged_request", default=None
)
current: Callable[[], LoggedRequest | None] = _current.get


def begin(request: LoggedRequest) -> None:
    """Everything that this task and its children queue from now on belongs to this request."""
    _current.set(request)


def note_error(code: str) -> None:
    """The request being served just here, if it is logged, has failed with this."""
    request = _current.get()
    if request is not None:
        request.code = code


def follow(batcher: ObservedBatcher) -> None:
    """Make the log lines name the batch that each request was in; of several, the last."""
    Following(current, _finished).follow(batcher)


def _finished(
    event: BatchFinished, requests: list[tuple[Item, LoggedRequest]], about: None
) -> None:
    for item, request in requests:
        request.was_in(event, item)
