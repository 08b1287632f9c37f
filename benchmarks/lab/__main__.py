"""`python -m benchmarks.lab [name …]`: the benchmarks of single parts, run as the others are."""

import sys

from benchmarks import tool_calls
from benchmarks.__main__ import keep_rows, main
from benchmarks.lab import (
    agents,
    chat_deciding,
    chat_front,
    chat_load,
    chat_right,
    client_calls,
    composing,
    dashboard,
    faults,
    generators,
    gpu,
    http_overload,
    lengths,
    metrics,
    plain,
    repository,
    scaling,
    speech,
    streams,
    workers,
)
from benchmarks.report import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    **composing.BENCHMARKS,
    **plain.BENCHMARKS,
    **repository.BENCHMARKS,
    **http_overload.BENCHMARKS,
    **metrics.BENCHMARKS,
    **dashboard.BENCHMARKS,
    **client_calls.BENCHMARKS,
    **gpu.BENCHMARKS,
    **generators.BENCHMARKS,
    **lengths.BENCHMARKS,
    **faults.BENCHMARKS,
    **workers.BENCHMARKS,
    **scaling.BENCHMARKS,
    **speech.BENCHMARKS,
    **streams.BENCHMARKS,
    **chat_load.BENCHMARKS,
    **chat_deciding.BENCHMARKS,
    **chat_front.BENCHMARKS,
    **chat_right.BENCHMARKS,
    **agents.BENCHMARKS,
    **tool_calls.PARTS,
}
# They need an environment of their own, `.venv-llm`; `scaling` needs Prometheus, HAProxy and Helm.
ON_DEMAND = {
    *scaling.BENCHMARKS,
    *generators.BENCHMARKS,
    *chat_load.BENCHMARKS,
    *chat_front.BENCHMARKS,
    *chat_right.BENCHMARKS,
    *agents.BENCHMARKS,
    *tool_calls.PARTS,
}

if __name__ == "__main__":
    sys.exit(main("benchmarks.lab", BENCHMARKS, ON_DEMAND, keep_rows))
