"""`python -m benchmarks.triton_examples FOLDER`: Triton's own example programs against this server.

FOLDER is `src/python/examples` of triton-inference-server/client, as it is. The models that the
programs expect lie in `models`, written for Headway. A program passes if it exits with 0 and, where
it has a word for that, says PASS. Those for CUDA shared memory are left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.__main__ import keep
from benchmarks.report import Bar, Report, machine

HERE = Path(__file__).parent
ASKED = 24
MOST_S = 120
# As in Triton's own repository of examples, whose number its programs count.
EIGHT = (
    *("densenet_onnx", "preprocess_inception_ensemble", "simple", "simple_dyna_sequence"),
    *("simple_identity", "simple_int8", "simple_sequence", "simple_string"),
)
PROGRAMS = [
    "ensemble_image_client",
    "grpc_client",
    "grpc_explicit_byte_content_client",
    "grpc_explicit_int8_content_client",
    "grpc_explicit_int_content_client",
    "grpc_image_client",
    "image_client",
    "memory_growth_test",
    "reuse_infer_objects_client",
    "simple_grpc_aio_infer_client",
    "simple_grpc_aio_sequence_stream_infer_client",
    "simple_grpc_async_infer_client",
    "simple_grpc_custom_args_client",
    "simple_grpc_custom_repeat",
    "simple_grpc_health_metadata",
    "simple_grpc_infer_client",
    "simple_grpc_keepalive_client",
    "simple_grpc_model_control",
    "simple_grpc_sequence_stream_infer_client",
    "simple_grpc_sequence_sync_infer_client",
    "simple_grpc_shm_client",
    "simple_grpc_shm_string_client",
    "simple_grpc_string_infer_client",
    "simple_http_aio_infer_client",
    "simple_http_async_infer_client",
    "simple_http_health_metadata",
    "simple_http_infer_client",
    "simple_http_model_control",
    "simple_http_sequence_sync_infer_client",
    "simple_http_shm_client",
    "simple_http_shm_string_client",
    "simple_http_string_infer_client",
]
HTTP, GRPC = "localhost:8000", "localhost:8001"  # some programs know no other
OPTIONS = {
    "ensemble_image_client": ["-c", "2"],
    "grpc_image_client": ["-m", "densenet_onnx", "-c", "2", "-b", "2", "--streaming"],
    "image_client": ["-m", "densenet_onnx", "-c", "2", "-i", "grpc", "-u", GRPC],
}
SEEN_BY = {"simple_http_model_control": EIGHT[:1] + EIGHT[2:], "simple_grpc_model_control": EIGHT}


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    passed: bool
    last_words: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.triton_examples")
    parser.add_argument("folder", type=Path, help="src/python/examples of Triton's client")
    parser.add_argument("--python", default=sys.executable, help="one that has tritonclient, PIL")
    parser.add_argument("--write", action="store_true", help="also into RESULTS.md")
    arguments = parser.parse_args()
    programs = [each for each in PROGRAMS if (arguments.folder / f"{each}.py").exists()]
    outcomes = []
    with tempfile.TemporaryDirectory() as images:
        _draw(Path(images))
        for names, served in _by_models(programs):
            with _serving(served):
                for name in names:
                    program = arguments.folder / f"{name}.py"
                    outcomes.append(_run(program, arguments.python, images))
                    print(*_row(outcomes[-1]), sep="  ", flush=True)
    text = _report(outcomes).to_markdown() + f"- {machine()}\n"
    print(text)
    if arguments.write:
        keep("triton-examples", text)
    return 0


def _by_models(programs: Sequence[str]) -> Iterator[tuple[list[str], Sequence[str] | None]]:
    """Programs that share a server, and which models it has; None: all."""
    yield [name for name in programs if name not in SEEN_BY], None
    for name in programs:
        if name in SEEN_BY:
            yield [name], SEEN_BY[name]


@contextmanager
def _serving(names: Sequence[str] | None) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        every = sorted(each.name for each in (HERE / "models").iterdir())
        for name in names or every:
            shutil.copytree(HERE / "models" / name, models / name)
        command = [sys.executable, "-m", "headway", "serve", str(models), "--admin-without-key"]
        command += ["--server-name", "triton", "--shared-memory"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr) as server:
            try:
                _wait_ready(server)
                yield
            finally:
                server.terminate()


def _wait_ready(server: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        try:
            if httpx.get(f"http://{HTTP}/v2/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the server does not get ready")


def _draw(folder: Path) -> None:
    """Two images to be told apart."""
    from PIL import Image

    Image.new("RGB", (32, 24), "red").save(folder / "red.png")
    Image.new("RGB", (24, 32), "blue").save(folder / "blue.png")


def _run(program: Path, python: str, images: str) -> Outcome:
    name = program.stem
    command = [python, str(program), *OPTIONS.get(name, [])]
    if "image" in name:
        command.append(images)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MOST_S, cwd=program.parent,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(name, False, f"no end after {MOST_S} s")
    says_pass = "PASS" in done.stdout or "PASS" not in program.read_text()
    said = (done.stderr or done.stdout).strip().splitlines()
    return Outcome(name, done.returncode == 0 and says_pass, said[-1][:120] if said else "")


def _row(outcome: Outcome) -> list[str]:
    return [outcome.name, "passed" if outcome.passed else f"failed: {outcome.last_words}"]


def _report(outcomes: Sequence[Outcome]) -> Report:
    passed = sum(each.passed for each in outcomes)
    return Report(
        "Triton's own example programs",
        ["program", "outcome"],
        [_row(each) for each in outcomes],
        [
            Bar(
                f"≥ {ASKED} of the {len(PROGRAMS)} that need no CUDA shared memory",
                f"{passed} of {len(outcomes)}",
                passed >= ASKED,
            )
        ],
        [
            "two programs send a query (`?test_1=1`) with an inference, which is refused by name: "
            "what is not understood is never dropped; one looks for words of the message in the "
            "status code; tensors do not stream without a batch axis",
            "`python -m benchmarks.triton_examples FOLDER`, where FOLDER is `src/python/examples` "
            "of triton-inference-server/client",
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
