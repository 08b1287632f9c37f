"""Token-level batching in virtual time, and what its simulation promises."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.cli.main import main
from headway.core.generation.limits import EngineLimits
from headway.errors import ConfigError
from headway.lab.generation import (
    Conversations,
    GenerationOutcome,
    StepCost,
    compare,
    read_conversations,
    simulate_continuous,
    simulate_static,
)
from headway.lab.traces import read_sizes, read_tenants

CPU = StepCost(0.012, 0.0018)
GPU = StepCost(0.006, 0.00002)


def limits(**fields: Any) -> EngineLimits:
    return EngineLimits(**{"blocks": 200_000, "max_context": 1_000_000, **fields})


def conversations(*asked: tuple[float, int, int]) -> Conversations:
    arrivals, prompts, outputs = zip(*asked, strict=True)
    return Conversations(np.array(arrivals), np.array(prompts), np.array(outputs))


def p99(outcome: GenerationOutcome) -> float:
    return float(np.percentile(outcome.between_tokens_s, 99))


@pytest.mark.parametrize("cost", [CPU, GPU], ids=["cpu", "gpu"])
def test_long_prompts_beside_streams_disturb_them_little_and_get_done(cost: StepCost) -> None:
    """2,000 tokens every 4 times their own time, beside 8 streams."""
    alone_s = cost(2000)
    streams = [(0.0, 48, int(32 * alone_s / cost(8)))] * 8
    long = [(4 * alone_s * (each + 1), 2000, 8) for each in range(6)]
    without = simulate_continuous(conversations(*streams), limits(), cost)
    beside = simulate_continuous(conversations(*streams, *long), limits(), cost)
    assert p99(beside) <= 2.0 * p99(without)
    assert beside.first_token_s[8:].max() <= 4.0 * alone_s


def test_continuous_batching_beats_static_where_lengths_differ() -> None:
    rng = np.random.default_rng(1)
    asked = [(0.05 * each, 48, int(rng.integers(4, 120))) for each in range(100)]
    continuous, whole, static = compare(
        conversations(*asked), limits(max_sequences=16), StepCost(0.01, 0.0002)
    )
    assert continuous.tokens == whole.tokens == static.tokens == sum(out for _, _, out in asked)
    assert continuous.lasted_s < static.lasted_s / 1.5
    assert np.median(continuous.first_token_s) < np.median(static.first_token_s) / 5


def test_static_batches_wait_for_their_longest() -> None:
    outcome = simulate_static(
        conversations((0.0, 10, 2), (0.0, 20, 5), (0.001, 10, 1)),
        limits(),
        StepCost(1.0, 0.0),
    )
    assert outcome.first_token_s.tolist() == [1.0, 1.0, pytest.approx(5.999)]
    assert outcome.tokens == 8


def test_the_last_chat_is_answered_however_late_it_comes() -> None:
    """An idle scheduler waits a moment for the rest of a burst; nothing comes after this one."""
    found = simulate_continuous(conversations((0.0, 48, 8), (60.0, 48, 8)), limits(), CPU)
    assert found.tokens == 16
    assert found.first_token_s.max() < 1.1 * CPU(48)


def test_a_full_cache_preempts_and_all_get_their_tokens() -> None:
    asked = conversations(*((0.01 * each, 50, 200) for each in range(12)))
    outcome = simulate_continuous(asked, limits(blocks=60, max_context=400), CPU)
    assert outcome.preemptions
    assert outcome.tokens == 12 * 200


def test_azures_and_mooncakes_traces_are_read(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.00,374,44\n2023-11-16 18:15:48.50,396,109\n"
    )
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text(
        '{"timestamp": 1000, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n'
        '{"timestamp": 3500, "input_length": 396, "output_length": 109, "hash_ids": [2]}\n'
    )
    for path in (azure, mooncake):
        found = read_conversations(path)
        assert found.arrivals.tolist() == [0.0, 2.5]
        assert found.prompts.tolist() == [374, 396]
        assert found.outputs.tolist() == [44, 109]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens\n1,2\n2,3\n"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,x\n2,3,4\n"),
        ("a.jsonl", "{}\n{}\n"),
        ("a.jsonl", "not json"),
        ("a.jsonl", "[" * 100_000),
        ("a.jsonl", f'{{"timestamp": 1{"0" * 400}, "input_length": 1, "output_length": 1}}\n' * 2),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,nan\n2,3,4\n"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n0,2,3\n1e-300,3,4\n"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n-1.7e308,2,3\n1.7e308,3,4\n"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,1e300\n2,3,4\n"),
    ],
)
def test_a_trace_that_lacks_something_says_so(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match="trace"):
        read_conversations(path)


def test_a_tenant_of_a_trace_is_no_command_to_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("timestamp,tenant\n1,a\x1b[2J\n2,b\n")
    assert read_tenants(path) == ["a?[2J", "b"]


def test_a_trace_with_a_name_of_its_own_on_every_line_is_read_as_any_other(tmp_path: Path) -> None:
    """Once each row had a cell for every name: 4,000 lines took ten seconds."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(f'{{"timestamp": {n}, "input_length": 1, "name{n}": 2}}\n' for n in range(20_000))
    )
    assert len(read_sizes(path)) == 20_000


def test_a_prompt_that_was_preempted_for_another_tenant_gets_no_more_tokens() -> None:
    """Once it did, in the same step: its blocks were gone, and the scheduler crashed."""
    rng = np.random.default_rng(3)
    arrivals = np.sort(rng.uniform(0, 150 / 8, 150))
    owners = ["ab"[each] for each in (rng.random(150) < 0.67).astype(int)]
    given = Conversations(arrivals, np.full(150, 100), np.full(150, 60), owners)
    limits = EngineLimits(blocks=64, max_sequences=16, step_tokens=70, max_context=1024)
    outcome = simulate_continuous(given, limits, StepCost(0.02, 2e-4))
    assert outcome.tokens == 150 * 60
    assert outcome.served is not None
    told = outcome.served.by_tenant()
    assert sum(each["output_tokens"] for each in told.values()) == 150 * 60
    assert outcome.preemptions > 0


def test_tokens_that_are_computed_again_are_not_charged_again() -> None:
    """A small cache, so that many are preempted: the tenant that is preempted more still gets as
    much. (Once it paid for what was computed again, and got a tenth less.)"""
    given = Conversations(
        np.concatenate([np.arange(100) * 0.6, np.arange(200) * 0.3]),
        np.full(300, 64),
        np.full(300, 64),
        ["light"] * 100 + ["heavy"] * 200,
    )
    order = np.argsort(given.arrivals, kind="stable")
    assert given.tenants is not None
    given = Conversations(
        given.arrivals[order],
        given.prompts,
        given.outputs,
        [given.tenants[each] for each in order],
    )
    limits = EngineLimits(blocks=64, max_sequences=32, step_tokens=128, max_context=1024)
    outcome = simulate_continuous(given, limits, StepCost(0.04, 1e-3))
    served = outcome.served
    assert served is not None
    assert outcome.preemptions > 50
    part = int(0.5 * len(served.ended_at))  # both have requests waiting until then
    light, heavy = (
        sum(served.prompt_tokens[name][:part]) + sum(served.output_tokens[name][:part])
        for name in ("light", "heavy")
    )
    assert light == pytest.approx(heavy, rel=0.05)


def test_waiting_tenants_of_equal_weight_get_equal_service() -> None:
    given = Conversations(
        np.zeros(200), np.full(200, 64), np.full(200, 64), ["a", *["b"] * 99, *["a"] * 99, "b"]
    )
    limits = EngineLimits(blocks=256, max_sequences=32, step_tokens=256, max_context=1024)
    served = simulate_continuous(given, limits, StepCost(0.02, 2e-4)).served
    assert served is not None
    half = len(served.ended_at) // 2
    a, b = (sum(served.output_tokens[name][:half]) for name in "ab")
    assert a == pytest.approx(b, rel=0.1)


def test_a_trace_says_whose_each_request_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"timestamp": 2000, "input_length": 7, "output_length": 4, "tenant": "late"}\n'
        '{"timestamp": 1000, "input_length": 5, "output_length": 3, "tenant": "early"}\n'
    )
    found = read_conversations(path)
    assert found.tenants == ["early", "late"]
    assert found.prompts.tolist() == [5, 7]


def test_the_command_compares_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.png"
    command = "simulate --generate --arrivals poisson:8 --latency 10,0.2 --requests 40 --json"
    lengths = "--prompts lognormal:100,1,500 --outputs lognormal:20,0.5,50"
    assert main([*command.split(), *lengths.split(), "--plot", str(plot)]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [each["policy"] for each in results] == ["continuous", "whole prompts", "static"]
    assert plot.stat().st_size > 1000
    assert main([*command.split()[:-1], *lengths.split()]) == 0
    assert "first token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--arrivals poisson:8 --latency 1,1", "--prompts"),
        ("--arrivals closed:3,10 --latency 1,1", "--arrivals"),
        ("--arrivals poisson:8 --profile x.json", "--latency"),
    ],
)
def test_what_the_command_lacks_is_named(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--generate", *flags.split()]) == 2
    assert message in capsys.readouterr().err
