"""`headway simulate --generate`: token-level batching compared in virtual time."""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headway.cli.simulate_scenarios import tell
from headway.core.generation.limits import EngineLimits
from headway.errors import ConfigError
from headway.lab import generation, report
from headway.lab.traces import rate_of, replay
from headway.lab.workload import OPEN_LOOPS, Times, of_tenants

_REQUESTS = 2_000  # unless --requests says otherwise: a request is many steps


def add_flags(parser: argparse.ArgumentParser, lengths: Callable[[str], Any]) -> None:
    add = parser.add_argument
    add(
        "--generate",
        action="store_true",
        help="a language model that decodes token by token, where a step takes --latency's "
        "ALPHA, and BETA for each token; compares continuous batching, the same without chunks, "
        "and static batches",
    )
    add(
        "--prompts",
        type=lengths,
        metavar="SPEC",
        help="with --generate: lengths of prompts in tokens, as --lengths; default: the trace's",
    )
    add("--outputs", type=lengths, metavar="SPEC", help="the same for answers")
    add(
        "--kv-tokens",
        type=int,
        default=65_536,
        metavar="N",
        help="tokens that the KV cache holds; default 65536",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.latency is None:
        raise ConfigError("--generate needs --latency ALPHA_MS,BETA_MS: a step, and a token of it")
    if arguments.plot:
        report.check_plot(arguments.plot)
    conversations = _conversations(arguments)
    limits = EngineLimits(
        blocks=max(1, arguments.kv_tokens // 16),
        max_sequences=arguments.max_batch_size,
        step_tokens=max(512, arguments.max_batch_size + 1),
        max_context=min(32_768, arguments.kv_tokens // 16 * 16),
        max_queue=10_000_000,
        tenant_weights={} if arguments.tenants is None else arguments.tenants.weights,
    )
    profile = arguments.latency
    cost = generation.StepCost(profile.alpha_s, profile.beta_s)
    outcomes = generation.compare(conversations, limits, cost)
    title = f"{arguments.arrivals.text}, {len(conversations.arrivals)} requests"
    tell(arguments, title, outcomes, generation.to_table, generation.plot)
    return 0


def _drawn(names: list[str], requests: int, seed: int) -> list[str]:
    rng = np.random.default_rng([seed, 4])
    return [names[each] for each in rng.integers(len(names), size=requests)]


def _traced(tenants: list[str] | None, requests: int) -> list[str] | None:
    return None if tenants is None else list(itertools.islice(itertools.cycle(tenants), requests))


def _conversations(arguments: argparse.Namespace) -> generation.Conversations:
    """From a trace, or drawn; lengths and tenants that are asked for count before the trace's."""
    spec, seed = arguments.arrivals, arguments.seed
    requests: int = arguments.requests or _REQUESTS
    trace = None if spec.file is None else generation.read_conversations(Path(spec.file))
    if trace is not None:
        arrivals = replay(trace.arrivals, requests, spec.rate_rps or rate_of(trace.arrivals))
        tenants = _traced(trace.tenants, requests)
    else:
        arrivals, tenants = _drawn_arrivals(arguments, requests)
    sizes = []
    for name, place in (("prompts", 0), ("outputs", 1)):
        asked = getattr(arguments, name)
        if asked is not None:
            sizes.append(asked.sizes(requests, seed + place))
        elif trace is not None:
            sizes.append(np.resize(getattr(trace, name), requests))
        else:
            raise ConfigError(f"--generate needs --{name}, where no trace has them")
    if arguments.tenants is not None and tenants is None:
        tenants = _drawn(list(arguments.tenants.weights), requests, seed)
    return generation.Conversations(arrivals, sizes[0], sizes[1], tenants)


def _drawn_arrivals(arguments: argparse.Namespace, requests: int) -> tuple[Times, list[str] | None]:
    """And their tenants, where each of those has a rate of its own."""
    spec, seed = arguments.arrivals, arguments.seed
    rates = {} if arguments.tenants is None else arguments.tenants.rates
    law = OPEN_LOOPS.get(spec.kind)
    if law is not None and spec.rate_rps is not None:
        return law(requests, spec.rate_rps, np.random.default_rng([seed, 1])), None
    if law is not None and rates:
        return of_tenants(law, requests, rates, seed)
    kinds = ", ".join(f"{kind}:RATE" for kind in OPEN_LOOPS)
    raise ConfigError(
        f"--generate takes --arrivals {kinds} or trace:FILE; without a rate, --tenants has them"
    )
