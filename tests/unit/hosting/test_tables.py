"""Warm-up tables on disk: when one counts, and when it does not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headway.core.costs import CostTable
from headway.hosting import tables
from headway.hosting.tables import TableStore, in_cache

TABLE = CostTable(
    rows=(1, 2), sizes=(8, 32), seconds=((0.001, 0.002), (0.002, 0.003)), errors=(0.5, -0.5)
)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "weights"
    file.write_bytes(b"123")
    return file


def store(weights: Path, *places: Path, **settings: Any) -> TableStore:
    places = places or (weights.parent / tables.NAME,)
    return TableStore(files=[weights], settings=settings, places=places)


def test_a_table_comes_back_as_it_was(weights: Path) -> None:
    assert store(weights).load() is None
    assert store(weights).save(TABLE) == weights.parent / tables.NAME
    assert store(weights).load() == TABLE


def test_the_file_can_be_read_as_a_profile(weights: Path) -> None:
    store(weights).save(TABLE)
    document = json.loads((weights.parent / tables.NAME).read_text())
    assert CostTable.from_json(document).seconds == TABLE.seconds


def test_other_weights_are_measured_again_the_same_touched_are_not(weights: Path) -> None:
    store(weights).save(TABLE)
    os.utime(weights, ns=(1, 1))
    assert store(weights).load() == TABLE
    weights.write_bytes(b"124")
    assert store(weights).load() is None


@pytest.mark.parametrize("what", ["device", "python", "libraries", "settings", "cores"])
def test_anything_else_it_was_measured_with_counts_too(weights: Path, what: str) -> None:
    store(weights, rows=4).save(TABLE)
    place = weights.parent / tables.NAME
    document = json.loads(place.read_text())
    assert store(weights, rows=4).load() == TABLE
    document["measured_with"][what] = "another"  # as a file from another machine would have it
    place.write_text(json.dumps(document))
    assert store(weights, rows=4).load() is None
    assert store(weights, rows=8).load() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"measured_with": 3}',
        '{"measured_with": {"weights": 1}}',
        "[" * 100_000,
        '{"measured_with":' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=range(8),
)
def test_what_is_no_table_is_as_if_it_were_not_there(weights: Path, text: str) -> None:
    (weights.parent / tables.NAME).write_text(text)
    assert store(weights).load() is None
    store(weights).save(TABLE)
    assert store(weights).load() == TABLE


def test_where_the_first_place_cannot_be_written_the_next_is_used(
    weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "a-file").write_text("")
    closed = tmp_path / "a-file" / tables.NAME
    cache = in_cache(tmp_path / "cache", "m", [weights])
    assert store(weights, closed, cache).save(TABLE) == cache
    assert store(weights, closed, cache).load() == TABLE
    assert store(weights, closed).save(TABLE) is None


def test_a_cache_has_one_file_for_each_model(tmp_path: Path, weights: Path) -> None:
    here = in_cache(tmp_path, "m", [weights])
    assert here == in_cache(tmp_path, "m", [weights])
    assert here != in_cache(tmp_path, "m", [tmp_path / "other"])
    assert here.is_relative_to(tmp_path)


def test_files_that_are_not_there_keep_no_table(weights: Path) -> None:
    nothing = store(weights.parent / "absent")
    assert nothing.save(TABLE) is None
    assert nothing.load() is None
