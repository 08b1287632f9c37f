"""Chat templates: programs that come with a model, run where they can reach nothing, and not long.

They all run in jinja2's immutable sandbox; no request brings one. What they render
keeps who wrote each character: the template's own code and literals, or the caller.
"""

import datetime
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import ConfigError, InvalidInput
from headway.files import read_json
from headway.models.chat.traced import CALLER, Traced, joined, joined_by, of_template
from headway.models.sources.installed import require

LIMIT_S = 2.0
_LONGEST = 64 * 2**20  # characters of what one renders
_LONGEST_REPEAT = 2**16


class ChatTemplate:
    """A model's chat template. Rendered off the event loop, by several threads at once."""

    def __init__(self, source: str, *, where: str, limit_s: float = LIMIT_S) -> None:
        """Raises ConfigError where it cannot be read."""
        jinja2 = require("jinja2", "language models", "llm")
        require("jinja2.meta", "language models", "llm")
        self.source = source
        self._limit_s = limit_s
        self._now = threading.local()
        sandbox = _sandbox(self._now)
        try:
            self._template = sandbox.from_string(source)
            # The names that it reads and does not set itself.
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(sandbox.parse(source)))
        except jinja2.TemplateError as error:
            raise ConfigError(f"{where}: its chat template cannot be read: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **names: Any,
    ) -> Traced:
        """Raises InvalidInput: it is the messages that the template did not take."""
        self._now.until = time.monotonic() + self._limit_s
        try:
            rendered: Traced = self._template.render(
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


def find_template(
    folder: Path, config: Mapping[str, Any]
) -> tuple[ChatTemplate | None, ChatTemplate | None]:
    """Find the template where transformers does: files of their own first, else `chat_template` in
    the tokenizer's configuration, which may be a list of named ones. The second is the one for
    chats with tools, where it is another. Raises ConfigError."""
    found: dict[str, Any] = {
        file.stem: file.read_text(encoding="utf-8")
        for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    file = folder / "chat_template.jinja"
    if file.is_file():
        found["default"] = file.read_text(encoding="utf-8")
    if not found and (folder / "chat_template.json").is_file():  # as processors had it
        found["default"] = read_json(folder / "chat_template.json").get("chat_template")
    listed = config.get("chat_template")
    if not found and isinstance(listed, list):
        found = {each["name"]: each["template"] for each in listed}
    elif not found and listed is not None:
        found["default"] = listed
    if not found:
        return None, None
    if not isinstance(found.get("default"), str):
        raise ConfigError(
            f"{folder}: none of its chat templates is the default one: {', '.join(sorted(found))}"
        )
    plain, with_tools = found["default"], found.get("tool_use")
    default = ChatTemplate(plain, where=str(folder))
    if not isinstance(with_tools, str) or with_tools == plain:
        return default, default
    return default, ChatTemplate(with_tools, where=str(folder))


class _TookTooLong(BaseException):
    """No subclass of Exception: a template's own filters must not swallow it."""


def _sandbox(now: threading.local) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):  # type: ignore[misc,unused-ignore]
        """Checks the time: every action of a loop in a template comes through here."""

        code_generator_class = _tracing_code()
        concat = staticmethod(joined)
        own = staticmethod(of_template)

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
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # folded constants would not be seen as the template's own
        extensions=["jinja2.ext.loopcontrols", _generation_tag()],
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    environment.filters["join"] = _joining(environment)
    for kind in (environment.filters, environment.tests):
        kind.update({name: _watched(name, function, now) for name, function in kind.items()})
    return environment


def _tracing_code() -> Any:
    """The compiler of templates: it marks each of their literals by `environment.own(…)`."""
    from jinja2.compiler import CodeGenerator

    class TracingCode(CodeGenerator):  # type: ignore[misc,unused-ignore]
        def visit_Const(self, node: Any, frame: Any) -> None:
            value = node.as_const(frame.eval_ctx)
            self.write(_own(value) if isinstance(value, str) else repr(value))

        def visit_TemplateData(self, node: Any, frame: Any) -> None:
            self.write(_own(node.as_const(frame.eval_ctx)))

        def visit_Concat(self, node: Any, frame: Any) -> None:
            self.write("environment.concat((")
            for each in node.nodes:
                self.write("str(")
                self.visit(each, frame)
                self.write("), ")
            self.write("))")

        def _output_const_repr(self, group: Any) -> str:
            return _own("".join(group))

    return TracingCode


def _own(text: str) -> str:
    return f"environment.own({text!r})"


def _generation_tag() -> Any:
    """`{% generation %}` marks the assistant's text, for training; here only its body counts."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationTag(Extension):  # type: ignore[misc,unused-ignore]
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return GenerationTag


def _joining(environment: Any) -> Any:
    from jinja2.filters import make_attrgetter

    def join(values: Any, d: str = "", attribute: str | int | None = None) -> Traced:
        if attribute is not None:
            values = map(make_attrgetter(environment, attribute), values)
        return joined_by(d, map(str, values))

    return join


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
    """The length of a repeated text or list; 0: these are numbers."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        return 0
    times, repeated = (left, right) if isinstance(left, int) else (right, left)
    return len(repeated) * times if isinstance(times, int) and hasattr(repeated, "__len__") else 0


def _refuse(message: str) -> None:
    raise ValueError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> Traced:
    """JSON counts as the caller's text, even if parts of it are the template's."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return Traced(text, CALLER * len(text))
