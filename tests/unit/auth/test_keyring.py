"""Keys: made, found, replaced."""

import pytest

from headway.config import KeyConfig
from headway.errors import QuotaExceeded, Unauthenticated
from headway.server.auth.keys import NOBODY, Caller, KeyRing, hash_of, new_key

KEY = new_key()


def configured(**settings: object) -> KeyConfig:
    return KeyConfig(**{"id": "a", "hash": KEY.hash, "tenant": "acme", **settings})


def found(ring: KeyRing, **headers: str) -> Caller:
    return ring.find({name.replace("_", "-"): value for name, value in headers.items()})


def test_a_key_is_long_random_and_not_in_its_hash() -> None:
    keys = {new_key().key for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("hw-") and len(key) >= 32 for key in keys)
    assert KEY.key not in KEY.hash
    assert hash_of(KEY.key) == KEY.hash


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY.key}"},
        {"authorization": f"bearer  {KEY.key} "},
        {"x_api_key": KEY.key},
        {"authorization": "Basic dXNlcjpwYXNz", "x_api_key": KEY.key},
    ],
)
def test_a_key_is_found_where_clients_put_it(headers: dict[str, str]) -> None:
    caller = found(KeyRing([configured()], 0.0), **headers)
    assert caller.key.tenant == "acme"


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer"}, {"x_api_key": " "}])
def test_no_key_is_nobody(headers: dict[str, str]) -> None:
    assert found(KeyRing([configured()], 0.0), **headers) is NOBODY


@pytest.mark.parametrize(
    "key",
    [KEY.key[:-1], KEY.key + "x", KEY.key.upper(), KEY.hash, "\udcff", "ü", "x" * 10_000],
    ids=["shorter", "longer", "upper", "hash", "surrogate", "letter", "long"],
)
def test_a_key_that_is_nearly_right_is_wrong(key: str) -> None:
    with pytest.raises(Unauthenticated):
        found(KeyRing([configured()], 0.0), authorization=f"Bearer {key}")


def test_keys_that_stay_keep_what_they_have_used() -> None:
    ring = KeyRing([configured(requests_per_s=1.0)], 0.0)
    caller = found(ring, x_api_key=KEY.key)
    caller.allowance.begin(0.0)
    ring.change([configured(requests_per_s=1.0)], 0.0)
    assert found(ring, x_api_key=KEY.key) is caller
    ring.change([configured(requests_per_s=1.0, rights=("admin",))], 0.0)
    changed = found(ring, x_api_key=KEY.key)
    assert changed is not None
    assert changed.key.rights == ("admin",)
    with pytest.raises(QuotaExceeded):
        changed.allowance.begin(0.0)


def test_a_key_that_is_taken_away_is_unknown() -> None:
    ring = KeyRing([configured()], 0.0)
    ring.change([], 0.0)
    with pytest.raises(Unauthenticated):
        found(ring, x_api_key=KEY.key)


def test_a_key_may_use_its_models_or_all() -> None:
    [limited, free] = (
        found(KeyRing([configured(models=models)], 0.0), x_api_key=KEY.key)
        for models in (("a",), ())
    )
    assert limited is not None
    assert free is not None
    assert [limited.may_use("a"), limited.may_use("b"), free.may_use("b")] == [True, False, True]
