"""Programs for GPUs that are not here: compiled, measured by what they need, and compared."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.kernel_code import compared

ROOT = Path(__file__).resolve().parents[3]


def told(*programs: tuple[str, str, str]) -> dict[str, Any]:
    counts = {"instructions": 1000, "registers": 64, "shared_bytes": 4096, "stages": ["8B"]}
    return {
        "triton": "3.6.0",
        "failed": {},
        "programs": [
            {"kernel": kernel, "variant": variant, "code": code, **counts}
            for kernel, variant, code in programs
        ],
    }


def test_programs_are_compared_by_their_machine_code() -> None:
    old = told(("a.x", "1", "same"), ("a.x", "2", "old"), ("a.y", "1", "gone"))
    new = told(("a.x", "1", "same"), ("a.x", "2", "new"), ("a.z", "1", "come"))
    new["programs"][1]["registers"] = 72
    found = {(row[0], row[2]): row for row in compared(old, new, "two").rows}
    assert {key: row[1] for key, row in found.items()} == {
        ("a.x", "the same"): 1,
        ("a.x", "**differs**"): 1,
        ("a.y", "only old"): 1,
        ("a.z", "only new"): 1,
    }
    assert found["a.x", "**differs**"][4] == "64 → 72"
    assert found["a.x", "the same"][4] == "64"


@pytest.mark.parametrize(("device", "shared_bytes"), [("A100", 166_912), ("4090", 101_376)])
def test_what_another_gpu_gets_fits_into_its_memory(
    device: str, shared_bytes: int, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="no Triton here: nothing is compiled")
    out = tmp_path / "programs.json"
    command = [sys.executable, "-m", "benchmarks.kernel_programs", str(out), "--on", device]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run(
        [*command, "--stages", "right", "8B logits"],
        check=True,
        cwd=tmp_path,
        env={**env, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    found = json.loads(out.read_text())
    assert not found["failed"]
    used = {each["kernel"]: each["shared_bytes"] for each in found["programs"]}
    assert {"decode._attend_one", "prefill._attend_many", "norm._rms_norm"} <= set(used)
    assert all(each["shared_bytes"] <= shared_bytes for each in found["programs"])
