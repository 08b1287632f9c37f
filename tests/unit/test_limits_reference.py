"""docs/reference/limits.md is true: every limit, every field of a key, with their defaults."""

import ast
import re
from pathlib import Path

import pytest

from headway.config import KeyConfig, ModelConfig, ServerConfig
from headway.server.config_changes import LIVE

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text()
TOLD = dict(re.findall(r"^\|(?: [^|]+\|)? `(\w+)`[^|]* \| `([^`]+)` \|", TEXT, flags=re.MULTILINE))
SETTINGS = [
    *("max_body_bytes", "max_json_bytes", "max_header_bytes", "max_tensor_elements"),
    *("max_request_rows", "max_connections", "max_handshakes", "max_held_bytes"),
    *("max_connections_per_address", "header_timeout_s", "body_timeout_s", "write_timeout_s"),
    *("keep_alive_s", "stop_delay_s", "drain_s", "tls_cert", "tls_client_ca", "cors_origins"),
]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_server_is_told_with_its_default(name: str) -> None:
    assert ast.literal_eval(TOLD[name]) == getattr(ServerConfig(), name)


@pytest.mark.parametrize("name", ["max_queue", "timeout_ms", "execute_timeout_ms"])
def test_a_setting_of_a_model_is_told_with_its_default(name: str) -> None:
    model = ModelConfig(name="m", target="m:M")
    assert ast.literal_eval(TOLD[name]) == getattr(model, name)


def test_every_field_of_a_key_is_told() -> None:
    key = KeyConfig(id="a", hash="sha256:" + "0" * 64, tenant="t")
    section = TEXT.partition("## Keys")[2]
    for name in KeyConfig.__struct_fields__:
        assert f"`{name}`" in section
        if name in TOLD:
            assert ast.literal_eval(TOLD[name]) == getattr(key, name)


def test_what_sighup_changes_is_told() -> None:
    section = TEXT.partition("## On SIGHUP")[2]
    assert set(re.findall(r"`(\w+)`", section)) == LIVE
