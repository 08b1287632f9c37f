"""`headway bench` and `headway conformance`, of a server with a language model and nothing else."""

import json

import pytest
from serving import Serving

from headway.cli.main import main

pytestmark = pytest.mark.real_time
QUICK = ("--concurrency", "1", "--seconds", "0.3", "--warm-up", "0", "--json")


def test_conformance_asks_for_short_texts_that_are_the_same_each_time(
    served: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["conformance", served.url, "--grpc", served.grpc, "--json"])
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert not [each for each in lines if each["outcome"] != "kept"]
    assert code == 0


def test_bench_asks_a_language_model_for_chats(
    served: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", served.url, *QUICK, "--max-tokens", "5"])
    [point] = json.loads(capsys.readouterr().out)
    assert not point["errors"]
    tokens = point["tokens"]
    assert tokens["per_s"] > 0
    assert tokens["good_rps"] is None  # no limit says what is good


def test_bench_sends_tensors_where_they_are_asked_for(
    served: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", served.url, *QUICK, "--json-tensors"])
    [point] = json.loads(capsys.readouterr().out)
    assert point["tokens"] is None
    assert main(["bench", served.url, *QUICK, "--json-tensors", "--max-tokens", "5"]) == 2
    assert "--max-tokens: is for --api chat" in capsys.readouterr().err
