"""Runs every party in turn, and sets their tokens a second beside each other.

A peer's Python is named by an environment variable: BENCH_VLLM_PYTHON, and BENCH_LLAMA_CPP_PYTHON
with the model's file in BENCH_GGUF. A peer without one is listed as not installed.
"""

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.loads import AT_ONCE, LONGEST, MIXED_AT_ONCE, MIXED_CHATS, OUT, PROMPT
from benchmarks.peers.loads import SHORTEST as LEAST
from benchmarks.report import Bar, Benchmark, Report

_ROOT = Path(__file__).parents[2]
LIMIT_S = 300  # for one party; vLLM takes minutes to start
LOADS = (*(str(count) for count in AT_ONCE), "mixed")
# Whole tokens a second on two cores with AVX-512 (bf16, VNNI), seen before.
SEEN = {
    "vLLM": {"1": 35.0, "4": 137.0, "16": 321.0, "32": 401.0},
    "llama.cpp": {"1": 83.0, "4": 112.0, "16": 157.0, "32": 150.0},
}


@dataclass(slots=True)
class Ran:
    """One party's best of all rounds, by load; or why there is none."""

    tok_s: dict[str, float] = field(default_factory=dict)
    failure: str = ""


def chat_peers(quick: bool) -> Report:
    from headway.models.chat.finding import find_language_model

    folder = str(find_language_model("chat"))
    rounds = 1 if quick else 2
    ran: dict[str, Ran] = {}
    for _ in range(rounds):  # in turns: the machine is faster at one time than at another
        for name, command in _commands(folder).items():
            ran[name] = _better(ran.get(name, Ran()), _run(command))
            print(f"{name}: {ran[name].tok_s or ran[name].failure}", file=sys.stderr, flush=True)
    rows: list[list[object]] = [
        [name, *(_cell(party, load) for load in LOADS)] for name, party in ran.items()
    ]
    notes = [
        f"whole tokens a second, the best of {rounds} turns; prompts of {PROMPT} tokens, {OUT} "
        f"out, 1 to 32 chats at once; mixed: {MIXED_CHATS} chats of {LEAST} to {LONGEST} tokens "
        f"out, {MIXED_AT_ONCE} at once (vLLM is given all of them and runs 32)",
        "two threads everywhere; llama.cpp computes 4-bit weights, vLLM bf16, transformers float32",
        *(f"{name}: {party.failure}" for name, party in ran.items() if party.failure),
    ]
    return Report(
        "Chat on the CPU beside its peers",
        ["tok/s", *(f"{load} at once" if load != "mixed" else load for load in LOADS)],
        rows,
        _bars(ran),
        notes,
    )


def _commands(folder: str) -> dict[str, list[str] | str]:
    """What to run; a text says why not."""
    here = [sys.executable, "-m"]
    engine = [*here, "benchmarks.peers.engine", "--folder", folder]
    own = [*here, "benchmarks.peers.transformers_batches", "--folder", folder, "--kind"]
    vllm = os.environ.get("BENCH_VLLM_PYTHON")
    llama, file = (os.environ.get(f"BENCH_{each}") for each in ("LLAMA_CPP_PYTHON", "GGUF"))
    return {
        "Headway, in process": engine,
        "Headway, in process, 8-bit weights": [*engine, "--quantization", "int8"],
        "Headway, over HTTP": [*here, "benchmarks.peers.over_http"],
        "Headway's engine, static batches": [*engine, "--static"],
        "llama.cpp": [llama, "-m", "benchmarks.peers.llama_cpp_batches", "--file", file]
        if llama and file
        else "not installed (BENCH_LLAMA_CPP_PYTHON, BENCH_GGUF)",
        "vLLM": [vllm, "-m", "benchmarks.peers.vllm_batches", "--folder", folder]
        if vllm
        else "not installed (BENCH_VLLM_PYTHON)",
        "transformers, continuous batching": [*own, "continuous"],
        "transformers, static batches": [*own, "static"],
    }


def _better(one: Ran, other: Ran) -> Ran:
    loads = one.tok_s.keys() | other.tok_s.keys()
    best = {load: max(each.tok_s.get(load, 0.0) for each in (one, other)) for load in loads}
    return Ran(best, other.failure)


def _run(command: list[str] | str) -> Ran:
    if isinstance(command, str):
        return Ran(failure=command)
    paths = f"{_ROOT}{os.pathsep}{_ROOT / 'src'}"
    try:
        party = subprocess.Popen(
            [*command, "--rounds", "1"],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        return Ran(failure=str(error))
    failure = ""
    try:
        said, errors = party.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        failure = f"was stopped after {LIMIT_S} s"
        # With all its processes: vLLM's workers would go on, and take the cores of those after it.
        os.killpg(party.pid, signal.SIGKILL)
        said, errors = party.communicate()
    if party.returncode and not failure:
        lines = errors.strip().splitlines() or ["it said nothing"]
        failure = f"ended with {party.returncode}: {lines[-1][:200]}"
    found: dict[str, list[float]] = defaultdict(list)
    for line in said.splitlines():
        if line.startswith('{"party"'):
            result = json.loads(line)
            found[result["load"]].append(result["tok_s"])
    return Ran({load: max(each) for load, each in found.items()}, failure)


def _cell(party: Ran, load: str) -> str:
    return f"{party.tok_s[load]:.0f}" if load in party.tok_s else "-"


def _bars(ran: Mapping[str, Ran]) -> list[Bar]:
    ours = ran["Headway, in process"].tok_s
    bars = []
    for load in ("16", "32"):
        bars.append(_beside("vLLM", 1.0, ran, ours, load))
    bars.append(_beside("llama.cpp", 0.6, ran, ours, "1"))
    bars.append(_beside("Headway's engine, static batches", 1.5, ran, ours, "mixed"))
    return bars


def _beside(
    peer: str,
    factor: float,
    ran: Mapping[str, Ran],
    ours: Mapping[str, float],
    load: str,
) -> Bar:
    """Beside the peer's figure of this run; where it did not run, the one seen before."""
    theirs, where = ran[peer].tok_s.get(load), "in this run"
    if theirs is None:
        theirs, where = SEEN.get(peer, {}).get(load), "seen before, on another machine"
    shape = "mixed lengths" if load == "mixed" else f"{load} at once"
    asked = f"≥ {factor:g}× {peer}, {shape}"
    if theirs is None or load not in ours:
        return Bar(asked, "nothing", reached=False)
    ratio = ours[load] / theirs
    value = f"{ratio:.2f}× ({ours[load]:.0f} and {theirs:.0f} tok/s, {where})"
    return Bar(asked, value, ratio >= factor)


BENCHMARKS: dict[str, Benchmark] = {"chat-peers": chat_peers}
