"""Settings as flags and variables, derived from the structs of `config.py`, and their
precedence."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from headway.config import Config, ModelConfig, ServerConfig, TypedText, default_of, of_tables
from headway.errors import ConfigError, nearest
from headway.setting_errors import expected, not_given

Struct: TypeAlias = type[ModelConfig] | type[ServerConfig]
PREFIX = "HEADWAY_"
_NOT_TYPED = frozenset(["name", "target"])  # what is served is the command's own argument
# Kubernetes puts HEADWAY_SERVICE_HOST, HEADWAY_PORT=tcp://… and the like into every container
# beside a service that is called "headway".
_KUBERNETES = re.compile(r"HEADWAY_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_\w+)")


def resolve(
    base: Mapping[str, Any],
    *,
    where: str,
    environment: Mapping[str, str],
    typed: Mapping[str, str | bool],
) -> Config:
    """Flags override the environment, which overrides the file (`base`).

    A model's setting that is typed, or in the environment, is for every model of the file.
    """
    settings = {**_from_environment(environment), **_from_flags(typed)}
    of_tables(base, where)  # report mistakes in the file as such, even where a flag overrides it
    tables: Any = base
    return of_tables(
        {
            **base,
            "server": {**tables.get("server", {}), **_of(ServerConfig, settings)},
            "models": [{**each, **_of(ModelConfig, settings)} for each in tables.get("models", ())],
            "every_model": {**tables.get("every_model", {}), **_of(ModelConfig, settings)},
        },
        where="",  # the file is right: what was typed does not go with it
    )


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting as a flag: `parser.add_argument(*flag.names, **flag.arguments)`."""

    field: str
    description: str
    default: object
    kind: Any

    @property
    def name(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.field.upper()

    @property
    def is_switch(self) -> bool:
        return self.kind is bool

    @property
    def names(self) -> list[str]:
        return [self.name, "--no-" + self.name[2:]] if self.is_switch else [self.name]

    @property
    def help(self) -> str:
        has_default = self.default not in (None, "", {}, ())
        default = f" (default: {_shown(self.default)})" if has_default else ""
        return (self.description + default).replace("%", "%%")

    @property
    def metavar(self) -> str | None:
        return None if self.is_switch else _metavar(self.kind)

    def parse(self, text: str) -> Any:
        """The value that this text means. Raises ValueError with what is expected instead."""
        choices = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        if choices and text not in choices:
            raise ValueError(f"one of {', '.join(choices)} is expected")
        return msgspec.convert(_split(text, self.kind), self.kind, strict=False)


def flags(struct: Struct) -> list[Flag]:
    """Every setting of a struct, as a flag."""
    hints = get_type_hints(struct, include_extras=True)
    return [
        Flag(
            field=field.name,
            description=_description(hints[field.name]),
            default=default_of(field),
            kind=_without_doc(hints[field.name]),
        )
        for field in msgspec.structs.fields(struct)
        if field.name not in _NOT_TYPED
    ]


def described(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The description of each field."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: _description(hints[name]) for name in struct.__struct_fields__}


def _all_flags() -> list[Flag]:
    return [*flags(ServerConfig), *flags(ModelConfig)]


def _of(struct: Struct, settings: Mapping[str, Any]) -> dict[str, Any]:
    fields = set(struct.__struct_fields__)
    return {name: value for name, value in settings.items() if name in fields}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    known = {flag.variable: flag for flag in _all_flags()}
    settings = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or _is_from_kubernetes(variable, text):
            continue
        flag = known.get(variable)
        if flag is None:
            raise ConfigError(f"no such setting{nearest(variable, known)}", field=variable)
        settings[flag.field] = _parsed(flag, text, variable)
    return settings


def _from_flags(typed: Mapping[str, str | bool]) -> dict[str, Any]:
    known = {flag.field: flag for flag in _all_flags()}
    return {
        field: value if isinstance(value, bool) else _parsed(known[field], value, known[field].name)
        for field, value in typed.items()
    }


def _parsed(flag: Flag, text: str, where: str) -> Any:
    try:
        return flag.parse(text)
    except ValueError as error:  # msgspec's are ValueErrors
        message = expected(str(error)) + not_given([flag.field], text)
        raise ConfigError(message, field=where) from error


def _is_from_kubernetes(variable: str, text: str) -> bool:
    return bool(_KUBERNETES.fullmatch(variable)) or (
        variable == "HEADWAY_PORT" and text.startswith(("tcp://", "udp://"))
    )


# ---- types of settings


def _split(text: str, kind: Any) -> Any:
    """Text as it is, or in the parts that a table or list has: `a=1,b=2` (or a JSON object) and
    `1,2,4`."""
    origin = get_origin(kind)
    if origin is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if origin is not dict:
        return text
    if text.lstrip().startswith("{"):
        return _json_table(text)
    if not text.strip():
        raise ValueError("NAME=VALUE,… is expected")
    table = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError("NAME=VALUE,… is expected")
        value = value.strip()
        table[key.strip()] = TypedText(value) if get_args(kind)[1] is Any else value
    return table


def _json_table(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"a JSON object is expected ({error})") from None


def _description(hint: Any) -> str:
    for part in (hint, *get_args(hint)):
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.description:
                return meta.description
    return ""


def _without_doc(hint: Any) -> Any:
    """The hint without its description. If nothing else is annotated, the type is easy to see."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return hint if kind in (int, float, str) else kind


def _metavar(kind: Any) -> str:
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    origin = get_origin(plain)
    if origin is Literal:
        return "{" + ",".join(get_args(plain)) + "}"
    if origin is dict:
        return "NAME=VALUE,…"
    if origin is tuple:
        return "N,N,…" if get_args(plain)[0] is int else "TEXT,TEXT,…"
    inner = [each for each in (plain, *get_args(plain)) if each not in (type(None),)]
    names = {int: "N", float: "X", str: "TEXT"}
    for each in inner:
        bare = get_args(each)[0] if get_origin(each) is Annotated else each
        if bare in names:
            return names[bare]
    return "VALUE"


def _shown(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
