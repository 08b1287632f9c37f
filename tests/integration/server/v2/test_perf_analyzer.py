"""The real `perf_analyzer`, from the wheel of tritonclient 2.41.1, measures us over HTTP and gRPC.

It is a C++ client that reads our answers unchecked: whatever is missing makes it fail or crash.
The wheels are fetched once into `~/.cache/headway-tests`; without them the tests are skipped.
"""

import ctypes.util
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from real_server import Server

CACHE = Path(os.environ.get("PERF_ANALYZER_CACHE", Path.home() / ".cache" / "headway-tests"))
WHEELS = {  # sha256 by requirement: a binary is run only if it is the one we know
    "tritonclient==2.41.1": "22ad56ae5ab25518862dec85af0a8246a32a1e14e2ee1d86f1444ce432c254e1",
    "nvidia-cuda-runtime-cu12==12.3.101": (
        "04604679ddca6acb96c76a7a9306282cddc16981f92e148e2dfe227078883cda"
    ),
}
FETCH_S = 30.0
RUN_S = 40.0


class Analyzer(NamedTuple):
    binary: Path
    libraries: str
    protocol: str

    def run(self, server: Server, *arguments: str) -> str:
        address = server.address if self.protocol == "http" else server.grpc
        done = subprocess.run(
            [
                *(str(self.binary), "-u", address, "-i", self.protocol, "-v"),
                *("--stability-percentage", "1000000", "--max-trials", "5"),
                *("--measurement-interval", "300", *arguments),
            ],
            env={**os.environ, "LD_LIBRARY_PATH": self.libraries},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return said


def call(*command: str, folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=FETCH_S)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{command[0]} could not fetch or unpack what perf_analyzer needs: {error}")


def unpacked_wheels(folder: Path) -> Path:
    target = folder / "wheels"
    if target.is_dir():
        return target
    call(
        *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder)),
        *("--only-binary", ":all:", "--platform", "manylinux1_x86_64", *WHEELS),
        folder=folder,
    )
    found = {hashlib.sha256(file.read_bytes()).hexdigest(): file for file in folder.glob("*.whl")}
    half_done = folder / f"wheels.{os.getpid()}"
    for requirement, sha256 in WHEELS.items():
        if sha256 not in found:
            pytest.skip(f"the wheel of {requirement} is not the one it was")
        with zipfile.ZipFile(found[sha256]) as wheel:
            wheel.extractall(half_done)
    half_done.rename(target)
    return target


def unpacked_libb64(folder: Path) -> str:
    """Where libb64 is; nothing where the system has it."""
    if ctypes.util.find_library("b64"):
        return ""
    target = folder / "libb64"
    if not target.is_dir():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            pytest.skip("perf_analyzer needs libb64, which is not installed (libb64-0d)")
        call("apt-get", "download", "-q", "libb64-0d", folder=folder)
        for package in folder.glob("libb64-0d_*.deb"):
            call("dpkg-deb", "-x", str(package), str(target), folder=folder)
    return next((str(file.parent) for file in target.rglob("libb64.so*")), "")


@pytest.fixture(scope="module", params=["http", "grpc"])
def analyzer(request: pytest.FixtureRequest) -> Analyzer:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the binary is for Linux on x86-64")
    folder = CACHE / "perf_analyzer"
    folder.mkdir(parents=True, exist_ok=True)
    wheels = unpacked_wheels(folder)
    [binary] = wheels.glob("tritonclient-*.data/data/bin/perf_analyzer")
    binary.chmod(0o755)
    libraries = f"{wheels / 'nvidia/cuda_runtime/lib'}:{unpacked_libb64(folder)}"
    made = Analyzer(binary, libraries.rstrip(":"), request.param)
    starts = subprocess.run(
        [str(binary), "--version"],
        env={**os.environ, "LD_LIBRARY_PATH": made.libraries},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    if "error while loading shared libraries" in starts.stderr or "GLIBC" in starts.stderr:
        pytest.skip(f"perf_analyzer does not run here: {starts.stderr.strip()}")
    return made


def count(said: str, what: str) -> int:
    found = re.findall(rf"{what}: (\d+)", said)
    assert found, said
    return int(found[-1])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency-range", "1"],
        ["--concurrency-range", "8", "-b", "4"],
        ["--concurrency-range", "4", "--async"],
        ["--request-rate-range", "500"],
        [
            *("--concurrency-range", "2"),
            *("--input-tensor-format", "json", "--output-tensor-format", "json"),
        ],
    ],
    ids=" ".join,
)
def test_numbers_are_measured(analyzer: Analyzer, server: Server, arguments: list[str]) -> None:
    said = analyzer.run(server, "-m", "double", *arguments)
    assert count(said, "Request count") >= 50
    # What we count and what it counts differ by what is under way at a window's edge.
    assert count(said, "Successful request count") >= 40
    assert count(said, "Inference count") > 0
    assert count(said, "Execution count") > 0


def test_two_inputs_and_outputs_are_measured(analyzer: Analyzer, server: Server) -> None:
    said = analyzer.run(server, "-m", "arithmetic", "--concurrency-range", "2")
    assert count(said, "Request count") >= 50


def test_half_precision_is_measured(analyzer: Analyzer, server: Server) -> None:
    said = analyzer.run(server, "-m", "half", "--concurrency-range", "2")
    assert count(said, "Request count") >= 50


def test_texts_are_measured(analyzer: Analyzer, server: Server) -> None:
    said = analyzer.run(server, "-m", "upper", "--concurrency-range", "2", "--string-length", "20")
    assert count(said, "Request count") >= 50


def test_the_real_model_is_measured(analyzer: Analyzer, minilm: Server) -> None:
    text = ("--string-data", "a text to embed")
    said = analyzer.run(minilm, "-m", "minilm", "--concurrency-range", "2", *text)
    assert count(said, "Request count") > 0


def test_an_error_is_told_in_our_words(analyzer: Analyzer, server: Server) -> None:
    with pytest.raises(AssertionError, match="no model 'nothing'"):
        analyzer.run(server, "-m", "nothing")


def test_a_model_that_fails_is_reported_not_measured(analyzer: Analyzer, server: Server) -> None:
    with pytest.raises(AssertionError, match=r"letters only streams|decoupled"):
        analyzer.run(server, "-m", "letters", "--concurrency-range", "1")


def test_shared_memory_is_measured_where_it_is_on(analyzer: Analyzer, server: Server) -> None:
    extensions = server.http.get("/v2").json()["extensions"]
    arguments = ("-m", "double", "--concurrency-range", "2", "--shared-memory", "system")
    if "system_shared_memory" in extensions:
        said = analyzer.run(server, *arguments, "--output-shared-memory-size", str(16 * 4))
        assert count(said, "Request count") >= 50
    else:
        with pytest.raises(AssertionError, match="shared memory"):
            analyzer.run(server, *arguments)
