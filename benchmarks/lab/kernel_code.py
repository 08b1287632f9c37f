"""Do two commits launch the same machine code on an H200? `python -m benchmarks.lab.kernel_code OLD
[NEW]`; without NEW, the files as they are. It needs Triton and torch, no GPU.

A figure that was measured with earlier kernels holds for later ones where both compile to the same
instructions. Launches are those of NEW's runner in both cases; only `gpu/kernels` is OLD's.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import Report

ROOT = Path(__file__).resolve().parents[2]
KERNELS = "src/headway/engine/gpu/kernels"

Programs = dict[tuple[str, str], dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        new = _sources(Path(folder) / "new", options.new, options.new)
        old = _sources(Path(folder) / "old", options.new, options.old)
        found = [_compiled(each) for each in (old, new)]
    print(compared(*found, f"{options.old} and {options.new or 'now'}").to_markdown())


def _sources(folder: Path, host: str | None, kernels: str | None) -> Path:
    """The package of one commit with the kernels of another; None: the files as they are."""
    for commit, part in ((host, "src/headway"), (kernels, KERNELS)):
        target = folder / part
        shutil.rmtree(target, ignore_errors=True)
        if commit is None:
            shutil.copytree(ROOT / part, target)
            continue
        archive = subprocess.run(
            ["git", "archive", commit, part], cwd=ROOT, check=True, capture_output=True
        ).stdout
        folder.mkdir(exist_ok=True)
        subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    return folder / "src"


def _compiled(sources: Path) -> dict[str, Any]:
    told = sources.parent / "programs.json"
    path = os.pathsep.join([str(sources), str(ROOT)])
    subprocess.run(
        [sys.executable, "-m", "benchmarks.lab.kernel_programs", told],
        check=True,
        cwd=sources.parent,
        env={**os.environ, "PYTHONPATH": path},
    )
    found: dict[str, Any] = json.loads(told.read_text())
    return found


# ---- comparing


def compared(old: dict[str, Any], new: dict[str, Any], which: str) -> Report:
    """A line for each kernel and each way in which its variants fare; counts of the first one."""
    ours, theirs = _by_key(new), _by_key(old)
    lines: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for key in sorted({*ours, *theirs}):
        lines.setdefault((key[0], _verdict(theirs.get(key), ours.get(key))), []).append(key)
    rows = [
        [kernel, len(keys), verdict, *_counts(theirs.get(keys[0]), ours.get(keys[0])), stages]
        for (kernel, verdict), keys in lines.items()
        for stages in [_stages(theirs.get(key) or ours[key] for key in keys)]
    ]
    notes = [f"{stage}: not with OLD's kernels ({why})" for stage, why in old["failed"].items()]
    notes += [f"{stage}: failed with NEW ({why})" for stage, why in new["failed"].items()]
    head = ["kernel", "variants", "machine code", "instructions", "registers", "shared bytes"]
    return Report(
        f"Machine code for an H200, {which} (Triton {new['triton']})",
        [*head, "launched by"],
        rows,
        [],
        notes,
    )


def _by_key(told: dict[str, Any]) -> Programs:
    return {(each["kernel"], each["variant"]): each for each in told["programs"]}


def _verdict(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
    if old is None:
        return "only new"
    if new is None:
        return "only old"
    return "the same" if old["code"] == new["code"] else "**differs**"


def _counts(old: dict[str, Any] | None, new: dict[str, Any] | None) -> Iterator[str]:
    for what in ("instructions", "registers", "shared_bytes"):
        both = [f"{each[what]:,}" for each in (old, new) if each is not None]
        yield " → ".join(dict.fromkeys(both))


def _stages(programs: Iterable[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(stage for each in programs for stage in each["stages"]))


if __name__ == "__main__":
    main()
