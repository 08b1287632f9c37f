"""Servers that the tests of this folder share: started once, stopped at the end."""

from collections.abc import Iterator

import httpx
import pytest
from real_server import TOML, Server, served
from served_models import MOST_S
from stacks import Stacks


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "headway.toml").write_text(TOML)
    with served(folder, "headway.toml") as running:
        yield running


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    from headway.models.ready.embed import MINILM_WEIGHTS

    if not MINILM_WEIGHTS.is_installed:
        pytest.skip(f"the weights are not installed: {MINILM_WEIGHTS.requirement}")
    with served(
        *(tmp_path_factory.mktemp("minilm"), "minilm", "--port", "0", "--grpc-port", "0"),
        *("--warm-up-s", "0.5"),
    ) as running:
        yield running


@pytest.fixture(params=["http", "asgi"])
def http(stacks: Stacks, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client of the `stacks` of a test's file: each of those that serve HTTP."""
    url = f"http://{stacks.addresses.of(request.param)}"
    with httpx.Client(base_url=url, timeout=MOST_S) as client:
        yield client
