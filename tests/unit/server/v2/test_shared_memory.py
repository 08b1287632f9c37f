"""Shared memory by registered name: bounds, bad names, and clients that pull the rug."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from full_disk import room_for
from headway.errors import Forbidden, InputTooLarge, InvalidInput
from headway.hosting.registry import Registry
from headway.server.families.v2 import codec
from headway.server.families.v2.bodies import RegisterRequest
from headway.server.families.v2.operations import Asked, Operations
from headway.server.service.inference import Inference
from headway.server.service.requests import SharedSlice
from headway.server.service.shared_memory import MAX_REGIONS, SharedRegions
from headway.server.service.tensors import RequestLimits, TensorSignature


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[SharedRegions]:
    (tmp_path / "key").write_bytes(bytes(range(64)))
    found = SharedRegions(tmp_path)
    yield found
    found.close()


def register(regions: SharedRegions, **fields: Any) -> None:
    regions.register(**{"name": "r", "key": "/key", "offset": 16, "byte_size": 32, **fields})


def test_reading_and_writing_count_from_the_regions_offset(regions: SharedRegions) -> None:
    register(regions)
    assert regions.read(SharedSlice("r", 4, 3)) == bytes([20, 21, 22])
    regions.write(SharedSlice("r", 0, 2), b"ab")
    assert regions.read(SharedSlice("r", 0, 3)) == b"ab\x12"


def test_an_answer_that_shared_memory_has_no_room_for_is_an_error(regions: SharedRegions) -> None:
    register(regions)
    with room_for(20), pytest.raises(InvalidInput, match="room for 4 of 8 bytes"):
        regions.write(SharedSlice("r", 0, 8), b"abcdefgh")


@pytest.mark.parametrize(
    "fields",
    [
        *({"key": key} for key in ("", "/", "..", "../key", "a/b", "/../key", "headway-1", "no")),
        {"offset": -1},
        {"byte_size": 0},
        {"byte_size": 49},
        {"offset": 2**70},
    ],
)
def test_a_region_that_is_not_there_is_refused(
    regions: SharedRegions, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        register(regions, **fields)
    assert regions.list() == []


def test_links_and_folders_are_refused(regions: SharedRegions, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "key")
    (tmp_path / "folder").mkdir()
    for key in ("link", "folder"):
        with pytest.raises(InvalidInput):
            register(regions, key=key)


def test_outside_the_region_is_refused(regions: SharedRegions) -> None:
    register(regions)
    for where in (SharedSlice("r", 30, 3), SharedSlice("r", 2**70, 1), SharedSlice("s", 0, 1)):
        with pytest.raises(InvalidInput):
            regions.read(where)
        with pytest.raises(InvalidInput):
            regions.write(where, b"a")


def test_a_region_shortened_after_registering_is_the_callers_error(
    regions: SharedRegions, tmp_path: Path
) -> None:
    register(regions)
    with (tmp_path / "key").open("r+b") as file:
        file.truncate(20)
    with pytest.raises(InvalidInput, match="shortened"):
        regions.read(SharedSlice("r", 0, 32))


def test_a_name_is_taken_until_it_is_let_go(regions: SharedRegions) -> None:
    register(regions)
    with pytest.raises(InvalidInput, match="already"):
        register(regions)
    regions.unregister("r")
    regions.unregister("r")
    register(regions)


def test_there_is_a_limit(regions: SharedRegions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_REGIONS < 5000
    monkeypatch.setattr("headway.server.service.shared_memory.MAX_REGIONS", 2)
    register(regions, name="a")
    register(regions, name="b")
    with pytest.raises(InvalidInput, match="no more"):
        register(regions, name="c")


def test_tensors_go_in_and_out_through_a_region(regions: SharedRegions) -> None:
    register(regions)
    where = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    body = {
        "inputs": [{"name": "x", "shape": [4], "datatype": "UINT8", "parameters": where}],
        "outputs": [{"name": "y", "parameters": {**where, "shared_memory_offset": 8}}],
    }
    request = codec.decode(json.dumps(body).encode(), regions=regions)
    assert request.inputs["x"].tolist() == [16, 17, 18, 19]
    outputs = {"y": numpy.array([1, 2, 3], "u1")}
    answer = json.loads(codec.encode("m", "1", request, outputs, regions=regions)[0])
    # No parameters: Triton's C++ client would look for binary data behind the JSON.
    assert answer["outputs"] == [{"name": "y", "datatype": "UINT8", "shape": [3, 1]}]
    assert regions.read(SharedSlice("r", 8, 3)) == bytes([1, 2, 3])
    with pytest.raises(InvalidInput, match="do not fit"):
        codec.encode("m", "1", request, {"y": numpy.zeros(5, "u1")}, regions=regions)


@pytest.mark.parametrize(
    "parameters",
    [
        {"shared_memory_region": "r"},
        {"shared_memory_region": 1, "shared_memory_byte_size": 4},
        {"shared_memory_region": "r", "shared_memory_byte_size": -4},
        {"shared_memory_region": "r", "shared_memory_byte_size": 4, "binary_data_size": 4},
        {"shared_memory_region": "r", "shared_memory_byte_size": 3},
    ],
)
def test_a_wrong_place_is_refused(regions: SharedRegions, parameters: dict[str, Any]) -> None:
    register(regions)
    tensor = {"name": "x", "shape": [4], "datatype": "UINT8", "parameters": parameters}
    with pytest.raises(InvalidInput, match="'x'"):
        codec.decode(json.dumps({"inputs": [tensor]}).encode(), regions=regions)


async def test_regions_are_registered_listed_and_forgotten(regions: SharedRegions) -> None:
    memory = Operations(Inference(Registry(), regions=regions))
    everything, one = Asked(None), Asked(None, "r")
    assert "system_shared_memory" in (await memory.server_metadata(everything)).extensions
    await memory.register_region(one._replace(body=RegisterRequest("/key", 8)))
    wanted = [{"name": "r", "key": "/key", "offset": 0, "byte_size": 8}]
    assert await memory.list_regions(everything) == wanted
    assert await memory.list_regions(one) == wanted
    await memory.unregister_region(one)
    await memory.unregister_region(everything)
    assert await memory.list_regions(everything) == []


async def test_where_it_is_off_nothing_can_be_registered() -> None:
    memory = Operations(Inference(Registry()))
    with pytest.raises(Forbidden):
        await memory.register_region(Asked(None, "r", body=RegisterRequest("/key", 8)))
    assert await memory.list_regions(Asked(None)) == []
    await memory.unregister_region(Asked(None))


def test_shared_memory_keeps_to_the_limit_on_elements(regions: SharedRegions) -> None:
    register(regions)
    where = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    tensor = {"name": "x", "shape": [4], "datatype": "UINT8", "parameters": where}
    signature = TensorSignature((), (), RequestLimits(elements=3))
    with pytest.raises(InputTooLarge, match="more than 3 elements"):
        codec.decode(json.dumps({"inputs": [tensor]}).encode(), None, signature=signature)
