"""What lies in a repository: names, versions, settings, fingerprints."""

import os
from pathlib import Path

import pytest

from headway.core.lifecycle.versions import VersionPolicy
from headway.errors import ConfigError, InvalidInput
from headway.hosting import tables
from headway.hosting.repository.folder import Repository
from headway.hosting.repository.settings import (
    RepositoryModelConfig,
    overridden,
    parse_override,
    read_settings,
)


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def fingerprint(root: Path) -> str:
    found = Repository(root).find("m")
    assert found is not None
    return found.versions[1].fingerprint


def test_models_are_folders_with_numbered_versions(tmp_path: Path) -> None:
    for path in ("a/1/f", "a/20/f", "a/x/f", "a/03/f", "a/0/f", "b/model.toml", "c/f", ".d/1/f"):
        write(tmp_path / path, "")
    write(tmp_path / "e")
    found = Repository(tmp_path).scan()
    assert {name: sorted(model.versions) for name, model in found.items()} == {
        "a": [1, 20],
        "b": [],
    }


def test_a_model_without_a_version_folder_is_told_where_its_files_belong(tmp_path: Path) -> None:
    write(tmp_path / "flat/model.py", "")
    found = Repository(tmp_path).scan()["flat"]
    assert found.error is not None
    assert "has no version: move model.py and its neighbours to" in found.error
    (tmp_path / "flat/1").mkdir()
    (tmp_path / "flat/model.py").rename(tmp_path / "flat/1/model.py")
    assert sorted(Repository(tmp_path).scan()["flat"].versions) == [1]


def test_a_folder_of_something_else_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    Repository(tmp_path).check()
    write(tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match="has no models"):
        Repository(tmp_path).check()
    with pytest.raises(ConfigError, match="is not a folder"):
        Repository(tmp_path / "absent")


def test_a_fingerprint_changes_with_files_and_settings_and_with_nothing_else(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "m/1/deep/weights", "abc")
    seen = {fingerprint(tmp_path)}

    def changed() -> bool:
        new = fingerprint(tmp_path)
        is_new = new not in seen
        seen.add(new)
        return is_new

    assert not changed()
    write(tmp_path / "m/1" / tables.NAME)
    write(tmp_path / "m/1/__pycache__/x.pyc")
    write(tmp_path / "m/2/weights")
    assert not changed()
    os.utime(file, ns=(1, 1))
    assert changed()
    write(tmp_path / "m/1/more")
    assert changed()
    write(tmp_path / "m/model.toml", "max_batch_size = 3")
    assert changed()
    write(tmp_path / "m/samples.jsonl", "1")
    assert changed()
    (tmp_path / "m/1/more").rename(tmp_path / "m/1/less")
    assert changed()


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../m", "m\0", "-m", ".m", "m/../m"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    write(tmp_path / "models/m/1/f")
    write(tmp_path / "m/1/f")
    assert Repository(tmp_path / "models").find(name) is None


def test_links_that_lead_outside_are_named(tmp_path: Path) -> None:
    outside = write(tmp_path / "secret/weights")
    root = tmp_path / "models"
    write(root / "m/1/f")
    (root / "m/1/link").symlink_to(outside)
    found = Repository(root).find("m")
    assert found is not None
    assert "link leads outside the repository" in (found.versions[1].error or "")
    (root / "m/1/link").unlink()
    (root / "m/1/deep").symlink_to(outside.parent)
    found = Repository(root).find("m")
    assert found is not None
    assert "is a link to a folder" in (found.versions[1].error or "")
    (root / "m/model.toml").symlink_to(outside)
    found = Repository(root).find("m")
    assert found is not None
    assert found.error is not None


def test_the_repository_itself_may_be_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real/m/1/f")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = Repository(tmp_path / "link").find("m")
    assert found is not None
    assert found.versions[1].error is None


# ---- settings


def settings(tmp_path: Path, text: str, **over: object) -> RepositoryModelConfig:
    return read_settings(write(tmp_path / "model.toml", text), over=over)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", VersionPolicy(1)),
        ("versions.latest = 3", VersionPolicy(3)),
        ("versions.all = true", VersionPolicy(None)),
        ("versions.listed = [1, 4]", VersionPolicy(1, (1, 4))),
    ],
)
def test_version_policies(tmp_path: Path, text: str, policy: VersionPolicy) -> None:
    assert settings(tmp_path, text).versions.policy == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_bach_size = 3", r"max_bach_size: no such setting; did you mean max_batch_size\?"),
        ("versions.lates = 3", r"\[versions\] lates: no such setting; did you mean latest\?"),
        ("versions = {latest = 1, all = true}", "one of latest, all and listed"),
        ("versions.latest = 0", r"\[versions\] latest: a whole number >= 1 is expected, not 0"),
        ("pad_sizes = [1, 'b']", r"toml: pad_sizes\[1\]: a whole number is expected, not 'b'"),
        ("unload_after_s = 3", 'set load = "on-request"'),
        ("max_batch_size = ", "Invalid value"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, text, max_batch_size=3)


def test_what_was_typed_goes_before_the_file(tmp_path: Path) -> None:
    assert settings(tmp_path, "max_batch_size = 3", max_batch_size=5).max_batch_size == 5


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ({"max_batch_size": 8}, "max_batch_size", 8),
        ({"max_batch_size": "16"}, "max_batch_size", 16),  # as Triton's own examples send it
        ({"slo_ms": 50}, "slo_ms", 50),
        ({"dynamic_batching": {"max_queue_delay_microseconds": "1500"}}, "max_wait_ms", 1.5),
        ({"dynamic_batching": {}}, "max_wait_ms", None),
        ({"instance_group": [{"count": 2}, {"kind": "KIND_CPU"}]}, "workers", 3),
        ({"platform": "onnxruntime_onnx", "name": "m"}, "max_batch_size", 64),
    ],
)
def test_a_load_may_say_things_in_our_words_or_tritons(
    override: dict[str, object], field: str, value: object
) -> None:
    assert getattr(overridden(RepositoryModelConfig(), override, "m"), field) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config is not JSON"),
        ("[]", "a JSON object is expected"),
        ('{"name": "n"}', "it is for 'n', not 'm'"),
        ('{"options": {"path": "/etc"}}', "in model.toml only"),
        ('{"version_policy": {"newest": {}}}', "Triton does not have"),
        ('{"instance_group": [{"count": "two"}]}', "'two' is not a whole number"),
        ('{"max_batch_size": "eight"}', "'eight' is not a whole number"),
        ('{"max_batch_size": 1.5}', "max_batch_size: a whole number is expected, not 1.5"),
        ('{"nonsense": 1}', "nonsense: no such setting"),
    ],
)
def test_what_a_load_may_not_say(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        overridden(RepositoryModelConfig(), parse_override(text), "m")
