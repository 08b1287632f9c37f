"""What a new configuration changes."""

from headway.config import Config, KeyConfig, ModelConfig, ServerConfig
from headway.server.config_changes import LIVE, changes_of, key_changes_of, merged

HASHES = ["sha256:" + digit * 64 for digit in "0123"]


def config(*models: ModelConfig, **server: object) -> Config:
    return Config(server=ServerConfig(**server), models=models)


def key(number: int, **settings: object) -> KeyConfig:
    return KeyConfig(
        **{"id": f"k{number}", "hash": HASHES[number], "tenant": f"t{number}", **settings}
    )


def told(old: Config, new: Config) -> list[str]:
    return [str(change) for change in changes_of(old, new)]


def test_nothing_changed_is_nothing_said() -> None:
    assert told(config(), config()) == []
    assert key_changes_of([key(0)], [key(0)], has_keys=True) == []


def test_limits_change_at_once_and_addresses_need_a_restart() -> None:
    assert told(config(), config(drain_s=5.0, port=9000)) == [
        "server.port: 8000 → 9000 (needs a restart)",
        "server.drain_s: 30.0 → 5.0",
    ]


def test_settings_of_every_model_need_a_restart() -> None:
    assert told(Config(every_model={"slo_ms": 5}), Config(every_model={"workers": 2})) == [
        "every_model.slo_ms: 5 → unset (needs a restart)",
        "every_model.workers: unset → 2 (needs a restart)",
    ]


def test_models_come_go_and_change_while_running() -> None:
    a = ModelConfig(name="a", target="m:A")
    b = ModelConfig(name="b", target="m:B", slo_ms=5)
    changed = ModelConfig(name="b", target="m:B", slo_ms=9)
    assert told(config(a, b), config(changed, ModelConfig(name="c", target="m:C"))) == [
        "model 'a': removed",
        "model 'b'.slo_ms: 5 → 9",
        "model 'c': added",
    ]


def test_keys_come_and_go_at_once() -> None:
    changes = key_changes_of([key(0), key(1)], [key(1, rows_per_s=5), key(2)], has_keys=True)
    assert [str(change) for change in changes] == [
        "key 'k0': removed",
        "key 'k1': changed",
        "key 'k2': added",
    ]


def test_the_first_key_needs_a_restart_and_the_last_goes_at_once() -> None:
    (first,) = key_changes_of([], [key(0)], has_keys=False)
    assert not first.is_live
    (last,) = key_changes_of([key(0)], [], has_keys=True)
    assert last.is_live


def test_a_weight_changes_at_once() -> None:
    changes = key_changes_of([key(0)], [key(0, weight=3)], has_keys=True)
    assert "weight of 't0': 1 → 3" in [str(change) for change in changes]


def test_hashes_are_not_told() -> None:
    old, new = config(api_keys={"a": HASHES[0]}), config(api_keys={"a": HASHES[1]})
    assert told(old, new) == ["server.api_keys: changed"]


def test_what_is_in_force_is_the_old_but_for_what_can_change() -> None:
    old, new = config(drain_s=1.0, port=1), config(drain_s=2.0, port=2)
    now = merged(old, new)
    assert (now.server.drain_s, now.server.port) == (2.0, 1)
    assert [change.name for change in changes_of(now, new)] == ["server.port"]


def test_every_live_setting_is_one() -> None:
    assert set(ServerConfig.__struct_fields__) >= LIVE
