"""Chat templates: programs that come with a model, run where they can reach nothing, and not long.

They run in jinja2's immutable sandbox, whatever they are; no request brings one.
"""

import datetime
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headway.errors import ConfigError, InvalidInput

LIMIT_S = 2.0
_LONGEST = 64 * 2**20  # characters of what one renders
_LONGEST_REPEAT = 2**16


class ChatTemplate:
    """One model's. Rendered off the event loop, by several threads at once."""

    def __init__(self, source: str, *, where: str, limit_s: float = LIMIT_S) -> None:
        """Raises ConfigError where it cannot be read."""
        try:
            from jinja2 import TemplateError
        except ImportError as error:
            raise ConfigError("language models need pip install 'headway[llm]'") from error
        self._limit_s = limit_s
        self._now = threading.local()
        try:
            self._template = _sandbox(self._now).from_string(source)
        except TemplateError as error:
            raise ConfigError(f"{where}: its chat template cannot be read: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **names: Any,
    ) -> str:
        """Raises InvalidInput: it is the messages that the template did not take."""
        self._now.until = time.monotonic() + self._limit_s
        try:
            rendered: str = self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **names
            )
        except _TookTooLong:
            raise InvalidInput(
                f"messages: the chat template took longer than {self._limit_s:g} s on them"
            ) from None
        except Exception as error:  # the template is the model's own code
            raise InvalidInput(f"messages: the chat template refuses them: {error}") from error
        if len(rendered) > _LONGEST:
            raise InvalidInput("messages: the chat template makes too long a text of them")
        return rendered


class _TookTooLong(BaseException):
    """Not an Exception: a template's own filters must not swallow it."""


def _sandbox(now: threading.local) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):  # type: ignore[misc,unused-ignore]
        """Whatever a template does in a loop comes through here: it looks at the time."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            _check(now)
            return super().getattr(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            _check(now)
            return super().getitem(obj, argument)

        def call(self, *arguments: Any, **named: Any) -> Any:
            _check(now)
            return super().call(*arguments, **named)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check(now)
            if operator == "**" or (operator == "*" and _repeats(left, right) > _LONGEST_REPEAT):
                raise ValueError(f"{operator} makes too much")
            if operator == "%":
                _check_size("format", [left])
            return super().call_binop(context, operator, left, right)

        intercepted_binops = frozenset(["+", "*", "**", "%"])

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    for kind in (environment.filters, environment.tests):
        kind.update({name: _watched(name, function, now) for name, function in kind.items()})
    return environment


def _watched(name: str, function: Callable[..., Any], now: threading.local) -> Any:
    """A filter or a test that looks at the time, also between the items that it passes on, and
    that makes nothing huge. (`wraps` keeps what jinja2 notes on it: which arguments it takes.)"""

    @functools.wraps(function)
    def watched(*arguments: Any, **named: Any) -> Any:
        _check(now)
        _check_size(name, (*arguments, *named.values()))
        result = function(*arguments, **named)
        return _each(result, now) if isinstance(result, Iterator) else result

    return watched


def _each(items: Iterator[Any], now: threading.local) -> Iterator[Any]:
    for item in items:
        _check(now)
        yield item


def _check_size(name: str, arguments: Sequence[Any]) -> None:
    if name == "replace":
        texts = [each for each in arguments if isinstance(each, str)]
        if len(texts) == 3 and len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]) > _LONGEST:
            raise ValueError("replace makes too much")
    elif name in ("center", "indent", "format", "wordwrap", "truncate", "round"):
        numbers = [each for each in arguments if isinstance(each, int)]
        widths = [int(each) for text in arguments[:2] for each in _widths(text)]
        if max([*numbers, *widths], default=0) > _LONGEST_REPEAT:
            raise ValueError(f"{name} makes too much")


def _widths(text: Any) -> list[str]:
    return re.findall(r"\d+", text) if isinstance(text, str) and "%" in text else []


def _check(now: threading.local) -> None:
    if time.monotonic() > getattr(now, "until", float("inf")):
        raise _TookTooLong


def _repeats(left: Any, right: Any) -> int:
    """How long a text or list becomes that is repeated; 0: these are numbers."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        return 0
    times, repeated = (left, right) if isinstance(left, int) else (right, left)
    return len(repeated) * times if isinstance(times, int) and hasattr(repeated, "__len__") else 0


def _refuse(message: str) -> None:
    raise ValueError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
