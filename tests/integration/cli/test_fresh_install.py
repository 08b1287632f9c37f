"""From an empty environment: `pip install headway`, then what a stranger types."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OLD_PROTOBUF = "protobuf==4.21.12"
APP = """
import headway

class Upper(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() for item in items]
"""
CALL = """
import subprocess, sys, re
import numpy, tritonclient.grpc as triton
server = subprocess.Popen(
    [sys.executable, "-m", "headway", "serve", "app.py:Upper", "--port", "0", "--grpc-port", "0"],
    stdout=subprocess.PIPE, text=True,
)
try:
    address = next(
        found[1] for line in server.stdout if (found := re.search(r"gRPC +(\\S+)", line))
    )
    given = triton.InferInput("input", [1, 1], "BYTES")
    given.set_data_from_numpy(numpy.array([["abc"]], dtype=object))
    with triton.InferenceServerClient(address) as client:
        print(client.infer("upper", [given]).as_numpy("output").tolist())
finally:
    server.terminate()
    server.wait(30)
"""
pytestmark = pytest.mark.slow


def pip(python: Path, *requirements: str) -> None:
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install {requirements}: {done.stderr[-500:]}")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with Headway and nothing else."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=120)
    found = folder / "venv" / "bin" / "python"
    sources = folder / "sources"  # a build must not write beside ours
    sources.mkdir()
    shutil.copytree(ROOT / "src", sources / "src")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    pip(found, str(sources))
    return found


def run(python: Path, folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HEADWAY_"))}
    return subprocess.run(
        [python, *command],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_extras_the_built_in_model_says_the_whole_fix(python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path, "-m", "headway", "serve", "--port", "0", "--grpc-port", "-1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "pip install 'headway[minilm]'" in done.stderr


def test_a_second_install_with_an_old_protobuf_breaks_nothing(python: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    pip(python, "hpack>=4.1")
    pip(python, "tritonclient[grpc]==2.41.0")
    pip(python, OLD_PROTOBUF)
    done = run(python, tmp_path, "-c", CALL)
    assert done.stdout.strip() == "[[b'ABC']]", done.stdout + done.stderr
