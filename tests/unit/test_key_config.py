"""Keys from the file of models, a file of their own, and variables."""

from pathlib import Path
from typing import Any

import pytest

from headway.config import Config, ServerConfig, keys_of, load, of_tables
from headway.errors import ConfigError
from headway.flags import flags, resolve

HASHES = ["sha256:" + digit * 64 for digit in "0123"]
INLINE = f"""
[[models]]
name = "m"
target = "m:M"
[[keys]]
id = "inline"
hash = "{HASHES[0]}"
tenant = "acme"
rights = ["infer", "admin"]
concurrent = 3
"""


def written(folder: Path, number: int = 1, **settings: Any) -> str:
    table = {"id": "filed", "hash": HASHES[number], "tenant": "other", **settings}
    lines = [f"{name} = {value!r}" for name, value in table.items()]
    (folder / "keys.toml").write_text("\n".join(["[[keys]]", *lines]))
    return str(folder / "keys.toml")


def config(**server: Any) -> Config:
    return resolve({"server": server}, where="x.toml", environment={}, typed={})


def test_without_keys_there_are_none() -> None:
    assert keys_of(config()) == ()


def test_keys_come_from_three_places(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text(INLINE)
    base = load(tmp_path / "headway.toml")
    assert [key.rights for key in keys_of(base)] == [("infer", "admin")]
    found = resolve(
        {"keys": [{"id": "inline", "hash": HASHES[0], "tenant": "acme"}]},
        where="x.toml",
        environment={"HEADWAY_API_KEYS": f"third={HASHES[2]}"},
        typed={"keys_file": written(tmp_path)},
    )
    assert [(key.id, key.tenant) for key in keys_of(found)] == [
        ("inline", "acme"),
        ("third", "third"),
        ("filed", "other"),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hash": "md5:0"}, "hash: a hash as `headway keys new` prints it"),
        ({"rights": []}, "rights: it is empty"),
        (
            {"rights": ["root"]},
            r"rights\[0\]: one of infer, metrics, admin is expected, not 'root'",
        ),
        ({"weight": 0}, "> 0"),
        ({"requests_per_s": -1}, "> 0"),
        ({"quota": 3}, "quota: no such setting"),
        ({"tenant": ""}, "tenant: it is empty"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"keys\.toml: .*" + message):
        keys_of(config(keys_file=written(tmp_path, **settings)))


def test_keys_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, id="acme")
    with pytest.raises(ConfigError, match="key 'acme' is there twice"):
        keys_of(config(keys_file=file, api_keys={"acme": HASHES[0]}))
    with pytest.raises(ConfigError, match="is there twice"):
        keys_of(config(keys_file=file, api_keys={"other": HASHES[1]}))
    written(tmp_path, weight=2)
    with pytest.raises(ConfigError, match="tenant 'other' has two weights"):
        keys_of(config(keys_file=file, api_keys={"other": HASHES[0]}))


def test_an_absent_or_empty_file_does_not_open_the_doors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys_file: there is no file .*; headway keys new"):
        keys_of(config(keys_file=str(tmp_path / "absent.toml")))
    (tmp_path / "keys.toml").write_text("")
    with pytest.raises(ConfigError, match=r"it has no \[\[keys\]\]"):
        keys_of(config(keys_file=str(tmp_path / "keys.toml")))


@pytest.mark.parametrize("name", ["keys_file", "api_keys", "tls_cert", "tls_key", "tls_client_ca"])
def test_a_door_that_is_set_to_nothing_is_refused_and_not_left_open(name: str) -> None:
    field = next(each for each in flags(ServerConfig) if each.field == name)
    for typed, environment in (({name: ""}, {}), ({}, {field.variable: ""})):
        with pytest.raises(ConfigError, match="is expected") as caught:
            resolve({}, where="headway.toml", environment=environment, typed=typed)
        assert caught.value.field in (field.name, field.variable)
    with pytest.raises(ConfigError, match=f"{name}: it is empty"):
        of_tables({"server": {name: {} if name == "api_keys" else ""}}, "headway.toml")


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_cert": "c.pem"},
        {"tls_key": "k.pem"},
        {"tls_client_ca": "ca.pem"},
        {"api_keys": {"acme": "secret"}},
    ],
)
def test_half_of_a_setting_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        config(**settings)


def test_a_plain_key_is_not_taken_for_a_hash() -> None:
    with pytest.raises(ConfigError) as refused:
        config(api_keys={"acme": "hw-this-is-secret"})
    assert "hw-this-is-secret" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"server": {"api_keys": "hw-this-is-secret"}},
        {"server": {"api_keys": ["hw-this-is-secret"]}},
        {"server": {"api_keys": {"acme": ["hw-this-is-secret"]}}},
        {"keys": [{"id": "a", "tenant": "a", "hash": ["hw-this-is-secret"]}]},
    ],
)
def test_a_key_at_a_hashs_place_is_not_repeated(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is expected") as caught:
        of_tables(given, "headway.toml")
    assert "secret" not in str(caught.value)


def test_a_key_that_is_typed_at_a_hashs_place_is_not_repeated() -> None:
    variable = {"HEADWAY_API_KEYS": "hw-this-is-secret"}
    with pytest.raises(ConfigError, match="is expected") as caught:
        resolve({}, where="", environment=variable, typed={})
    assert "secret" not in str(caught.value)
