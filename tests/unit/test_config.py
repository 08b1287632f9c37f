"""Configuration: one set of structs, four places, and a typo that fails by name."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway import config
from headway.config import Config, ModelConfig, ServerConfig, load, read
from headway.errors import ConfigError
from headway.flags import flags, resolve
from headway.runtime.batching.options import BatcherOptions

ONE: dict[str, Any] = {"models": [{"name": "m", "target": "app:M"}]}
TWO = """
[server]
port = 9000
[[models]]
name = "a"
target = "app:A"
max_batch_size = 8
[[models]]
name = "b"
target = "b.onnx"
options = { threads = 2 }
"""


def resolved(
    base: dict[str, Any] = ONE,
    environment: dict[str, str] | None = None,
    **typed: str | bool,
) -> Config:
    return resolve(base, where="file", environment=environment or {}, typed=typed)


def written(folder: Path, text: str) -> Path:
    path = folder / "headway.toml"
    path.write_text(text)
    return path


# ---- files


def test_a_file_is_read_into_the_structs(tmp_path: Path) -> None:
    found = load(written(tmp_path, TWO))
    assert found.server.port == 9000
    assert [model.name for model in found.models] == ["a", "b"]
    assert found.models[0].max_batch_size == 8
    assert found.models[1].options == {"threads": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1", r"toml: \[server\] prot: no such setting; did you mean port\?$"),
        (
            "[server]\nport = 70000",
            r"\[server\] port: a whole number <= 65535 is expected, not 70000$",
        ),
        ("[server]\nport = 'x'", r"\[server\] port: a whole number is expected, not 'x'$"),
        (
            TWO.replace("max_batch_size", "max_bach_size"),
            r"\[\[models\]\] 'a': max_bach_size: no such setting; did you mean max_batch_size\?$",
        ),
        ("[[model]]\nname = 'a'", r"\[model\]: no such table; did you mean \[\[models\]\]\?$"),
        ("port = 1", r"\[port\]: no such table; it belongs to \[server\]$"),
        ("[[models]]\ntarget = 'a'", r"\[\[models\]\] number 1: name is missing$"),
        ("[[models]]\nname = 'a'\ntarget = 'b'\nslo_ms = 0", r"'a': slo_ms: a number > 0 is expe"),
        (
            "[[models]]\nname = 'a'\ntarget = 'b'\npad_sizes = [1, 'b']",
            r"'a': pad_sizes\[1\]: a whole number is expected, not 'b'$",
        ),
        (
            "[[models]]\nname = 'a'\ntarget = 'b'\npolicy = 'windows'",
            r"'a': policy: one of auto, idle, window, static is expected, not 'windows'$",
        ),
        ("[server]\ntls_cert = 'a'", "toml: .server. tls_cert and tls_key must be set together$"),
        ("server = 3", r"server: a table is expected, not 3$"),
        (TWO.replace('name = "b"', 'name = "a"'), "two models or aliases are named 'a'"),
        (TWO.replace('name = "b"', 'name = "b/c"'), "'b/c' is not a name: letters, digits"),
        ("[[models]]\nname = 'a'", r"\[\[models\]\] 'a': target is missing$"),
        ("models =", "headway.toml: Invalid value"),
    ],
)
def test_a_mistake_in_a_file_says_where_it_is(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(written(tmp_path, text))


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.toml: No such file"):
        load(tmp_path / "absent.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="utf-8"):
        read(binary)


# ---- flags


def test_every_setting_is_a_flag_with_a_description_and_a_variable() -> None:
    typed = [*flags(ServerConfig), *flags(ModelConfig)]
    assert all(flag.description for flag in typed)
    assert len({flag.field for flag in typed}) == len(typed), "two structs share a field's name"
    fields = {*ServerConfig.__struct_fields__, *ModelConfig.__struct_fields__}
    assert {flag.field for flag in typed} == fields - {"name", "target"}
    by_field = {flag.field: flag for flag in typed}
    assert by_field["slo_ms"].name == "--slo-ms"
    assert by_field["slo_ms"].variable == "HEADWAY_SLO_MS"
    assert by_field["warm_up"].names == ["--warm-up", "--no-warm-up"]


@pytest.mark.parametrize(
    ("field", "metavar"),
    [
        ("max_batch_size", "N"),
        ("max_wait_ms", "X"),
        ("policy", "{auto,idle,window,static}"),
        ("host", "TEXT"),
        ("tenants", "NAME=VALUE,…"),
        ("batch_sizes", "N,N,…"),
        ("debug", None),
    ],
)
def test_help_shows_what_a_flag_takes(field: str, metavar: str | None) -> None:
    typed = {flag.field: flag for flag in (*flags(ServerConfig), *flags(ModelConfig))}
    assert typed[field].metavar == metavar


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("max_batch_size", "8", 8),
        ("slo_ms", "50", 50.0),
        ("max_wait_ms", "0.5", 0.5),
        ("policy", "window", "window"),
        ("tenants", "acme=2,other=0.5", {"acme": 2.0, "other": 0.5}),
        ("batch_sizes", "1, 4,16", (1, 4, 16)),
        ("options", "threads=2,path=/a/b", {"threads": "2", "path": "/a/b"}),  # typed by the model
        ("options", '{"threads": 2, "labels": ["a"]}', {"threads": 2, "labels": ["a"]}),
    ],
)
def test_text_becomes_the_settings_type(field: str, text: str, value: object) -> None:
    assert getattr(resolved(**{field: text}).models[0], field) == value
    variable = {f"HEADWAY_{field.upper()}": text}
    assert getattr(resolved(environment=variable).models[0], field) == value


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("max_batch_size", "-1", "a whole number >= 0 is expected, not '-1'"),
        ("max_batch_size", "many", "is expected, not 'many'"),
        ("worker", "rocket", "one of auto, inline, thread, process is expected, not 'rocket'"),
        ("slo_ms", "-1", "is expected, not '-1'"),
        ("policy", "fast", "is expected, not 'fast'"),
        ("tenants", "acme", "NAME=VALUE,… is expected, not 'acme'"),
        ("batch_sizes", "1,x", "is expected, not '1,x'"),
        ("port", "99999", "is expected, not '99999'"),
        ("warm_up", "maybe", "is expected, not 'maybe'"),
    ],
)
def test_a_bad_value_names_its_flag_or_variable(field: str, text: str, message: str) -> None:
    flag = "--" + field.replace("_", "-")
    with pytest.raises(ConfigError, match=f"{flag}: .*{message}"):
        resolved(**{field: text})
    variable = f"HEADWAY_{field.upper()}"
    with pytest.raises(ConfigError, match=f"{variable}: .*{message}"):
        resolved(environment={variable: text})


# ---- who wins


def test_flag_before_environment_before_file_before_default() -> None:
    file = {"server": {"port": 1, "host": "file"}, **ONE}
    environment = {"HEADWAY_PORT": "2", "HEADWAY_HOST": "environment"}
    assert resolved().server.port == 8000
    assert resolved(file).server.port == 1
    assert resolved(file, environment).server.port == 2
    found = resolved(file, environment, port="3")
    assert (found.server.port, found.server.host) == (3, "environment")


def test_a_models_flag_is_for_every_model_of_the_file(tmp_path: Path) -> None:
    found = resolved(read(written(tmp_path, TWO)), max_batch_size="4")
    assert [model.max_batch_size for model in found.models] == [4, 4]
    assert found.models[1].options == {"threads": 2}


def test_switches_can_be_turned_off_and_on() -> None:
    assert resolved().models[0].warm_up
    assert not resolved(warm_up=False).models[0].warm_up
    assert not resolved(environment={"HEADWAY_WARM_UP": "false"}).models[0].warm_up
    assert resolved(environment={"HEADWAY_DEBUG": "1"}).server.debug


def test_a_variable_with_a_typo_fails_by_name() -> None:
    with pytest.raises(
        ConfigError, match="HEADWAY_MAX_BACH_SIZE: no such setting; did you mean HEADWAY_MAX_BATCH"
    ):
        resolved(environment={"HEADWAY_MAX_BACH_SIZE": "3"})


def test_what_kubernetes_puts_there_is_not_ours() -> None:
    environment = {
        "HEADWAY_PORT": "tcp://10.0.0.1:8000",
        "HEADWAY_SERVICE_HOST": "10.0.0.1",
        "HEADWAY_SERVICE_PORT_HTTP": "8000",
        "HEADWAY_PORT_8000_TCP_ADDR": "10.0.0.1",
        "PATH": "/bin",
    }
    assert resolved(environment=environment) == resolved()


def test_a_mistake_in_the_file_is_reported_whatever_was_typed() -> None:
    wrong = {"server": {"port": "x"}, **ONE}
    with pytest.raises(ConfigError, match=r"file: \[server\] port"):
        resolved(wrong, port="3")


def test_defaults_are_those_of_the_structs() -> None:
    assert resolved().server == config.ServerConfig()


def test_a_setting_of_a_model_has_the_default_of_the_option() -> None:
    """But for those that a server has its own mind about."""
    settings = {each.name: each for each in msgspec.structs.fields(ModelConfig)}
    options = {each.name: each.default for each in dataclasses.fields(BatcherOptions)}
    shared = settings.keys() & options.keys() - {"name", "execute_timeout_ms", "tenants"}
    assert len(shared) >= 19
    assert {name: settings[name].default for name in shared} == {
        name: options[name] for name in shared
    }
