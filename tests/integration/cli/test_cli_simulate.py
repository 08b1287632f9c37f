"""The real command: in a process of its own where that matters, otherwise its `main`."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main

MODEL = ("--latency", "5,0.05", "--requests", "2000")
FIELDS = {
    "policy",
    "load",
    "mean_ms",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "mean_batch",
    "throughput_rps",
    "goodput_rps",
    "dropped",
    "fire_reasons",
    "padding_waste",
    "long_p99_ms",
}


def headway(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def results(*arguments: str) -> list[dict[str, Any]]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["simulate", *arguments, "--json"]) == 0
    assert err.getvalue() == ""
    parsed: list[dict[str, Any]] = json.loads(out.getvalue())
    return parsed


def test_json_has_every_policy_at_every_load() -> None:
    policies = ["auto", "idle", "window:5", "window:1,16", "static", "oracle"]
    flags = [flag for policy in policies for flag in ("--policy", policy)]
    done = headway(
        "simulate", "--arrivals", "poisson", "--load", "0.1,0.6", *MODEL, *flags, "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [(each["load"], each["policy"]) for each in found] == [
        (load, policy) for load in (0.1, 0.6) for policy in policies
    ]
    for each in found:
        assert set(each) >= FIELDS
        assert each["mean_ms"] > 5
        assert each["p50_ms"] <= each["p95_ms"] <= each["p99_ms"]
        assert each["dropped"] == 0
        assert each["goodput_rps"] == each["throughput_rps"]
        assert sum(each["fire_reasons"].values()) * each["mean_batch"] == pytest.approx(2000, 1e-3)
    oracle = next(each for each in found if each["policy"] == "oracle")
    assert oracle["config"].startswith("window:")
    again = results("--arrivals", "poisson", "--load", "0.1", *MODEL, "--policy", oracle["config"])
    assert again[0]["p99_ms"] == oracle["p99_ms"]


def test_the_same_seed_gives_the_same_figures_and_another_does_not() -> None:
    common = ("--arrivals", "mmpp:1000", *MODEL, "--noise", "0.1", "--policy", "auto")
    first, second = results(*common, "--seed", "3"), results(*common, "--seed", "3")
    assert first == second != results(*common, "--seed", "4")


@pytest.mark.parametrize("kind", ["fanout:500", "step:2000", "closed:8,0.5", "poisson:900"])
def test_every_kind_of_arrivals_runs(kind: str) -> None:
    found = results("--arrivals", kind, *MODEL, "--slo-ms", "50")
    assert found[0]["answered"] + found[0]["dropped"] == 2000
    assert 0.9 < found[0]["slo_attainment"] <= 1
    assert (found[0]["load"] is None) == kind.startswith("closed")


def test_under_overload_the_slo_keeps_the_goodput() -> None:
    found = results(
        *("--arrivals", "poisson", "--load", "1.5", *MODEL, "--slo-ms", "25", "--workers", "2"),
        *("--policy", "auto", "--policy", "window:5", "--noise", "0.05"),
    )
    auto, window = found
    assert auto["dropped"] > 0
    assert auto["goodput_rps"] > window["goodput_rps"]


def test_a_trace_and_a_profile_come_from_files(tmp_path: Path) -> None:
    trace, profile = tmp_path / "azure@home.csv", tmp_path / "model.json"
    lines = [f"2023-11-16 18:17:{i / 10:010.7f},100,7" for i in range(300)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    profile.write_text(json.dumps({"rows": [1, 8], "sizes": None, "ms": [[2.0], [9.0]]}))
    common = ("--profile", str(profile), "--max-batch-size", "8", "--requests", "1000")
    slow = results("--arrivals", f"trace:{trace}", *common, "--policy", "idle")
    assert slow[0]["rate_rps"] == pytest.approx(10, rel=0.01)
    assert slow[0]["mean_ms"] == pytest.approx(2.0)
    fast = results("--arrivals", f"trace:{trace}@400", *common, "--policy", "idle")
    assert fast[0]["throughput_rps"] == pytest.approx(400, rel=0.05)
    shares = results("--arrivals", f"trace:{trace}", "--load", "0.9", *common, "--policy", "idle")
    assert shares[0]["rate_rps"] == pytest.approx(0.9 * 8 / 0.009, rel=0.01)


def test_people_get_an_aligned_table() -> None:
    done = headway("simulate", "--arrivals", "poisson:400", *MODEL)
    assert done.returncode == 0
    assert done.stderr == ""
    title, _, header, *rows = done.stdout.splitlines()
    assert "poisson:400" in title
    assert "capacity 7805/s" in title
    assert [row.split()[1] for row in rows] == ["auto", "window:5", "static"]
    end = header.index("p99") + len("p99")
    assert all(row[end - 1].isdigit() and row[end] == " " for row in rows)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--arrivals", "poisson"), "--arrivals"),
        (("--arrivals", "uniform:5"), "--arrivals"),
        (("--arrivals", "poisson:-5"), "--arrivals"),
        (("--arrivals", "closed:8"), "--arrivals"),
        (("--arrivals", "trace:/nowhere/none.csv"), "--arrivals"),
        (("--arrivals", "closed:8,1", "--load", "0.5"), "--load"),
        (("--load", "0.5,x"), "--load"),
        (("--load", "90"), "--load"),
        (("--latency", "5"), "--latency"),
        (("--latency", "0,0"), "--latency"),
        (("--latency", "5,1", "--profile", "x.json"), "--profile"),
        (("--policy", "window"), "--policy"),
        (("--policy", "window:5,128"), "--policy"),
        (("--policy", "best"), "--policy"),
        (("--requests", "0"), "--requests"),
        (("--requests", "many"), "--requests"),
        (("--noise", "-1"), "--noise"),
        (("--slo-ms", "0"), "--slo-ms"),
        (("--max-batch-size", "0"), "--max-batch-size"),
        (("--max-queue", "0"), "--max-queue"),
        (("--workers", "0"), "--workers"),
        (("--seed", "-1"), "--seed"),
        (("--plot", "picture.txt"), "--plot"),
        (("--plot", "/nowhere/at/all.png"), "--plot"),
        (("--colour", "red"), "--colour"),
    ],
)
def test_a_wrong_flag_is_named_in_one_line(
    flags: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults = {"--arrivals": "poisson:100", "--latency": "5,0.05", "--requests": "50"}
    given = [
        text for flag, value in defaults.items() if flag not in flags for text in (flag, value)
    ]
    assert main(["simulate", *given, *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert named in err


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": [2, 1], "ms": [[1], [2]]}'])
def test_a_bad_profile_is_named_with_its_flag(tmp_path: Path, text: str) -> None:
    profile = tmp_path / "model.json"
    profile.write_text(text)
    assert main(["simulate", "--arrivals", "poisson:9", "--profile", str(profile)]) == 2


def test_mistakes_end_the_process_with_2() -> None:
    done = headway("simulate", "--arrivals", "poisson:5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--latency" in done.stderr
    assert main([]) == 2
    assert main(["simulat"]) == 2


def test_help_explains_and_ends_with_examples() -> None:
    done = headway("simulate", "--help")
    assert done.returncode == 0
    assert done.stdout.count("    headway simulate --arrivals") == 5
    for word in ("poisson:RATE", "window:MS", "oracle", "--slo-ms"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "flags",
    [
        ("--arrivals", "poisson", "--load", "0.1,0.5"),
        ("--arrivals", "step:3000", "--slo-ms", "30"),
        ("--arrivals", "poisson:300", "--policy", "window:2"),
    ],
)
def test_a_plot_is_written(tmp_path: Path, flags: tuple[str, ...]) -> None:
    picture = tmp_path / "picture.png"
    assert main(["simulate", *flags, *MODEL, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_a_plot_is_written_beside_the_table(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    done = headway("simulate", "--arrivals", "poisson:300", *MODEL, "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert "auto" in done.stdout
    assert done.stderr == f"wrote {picture}\n"
    assert picture.exists()


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plot = ("--plot", str(tmp_path / "picture.png"))
    assert main(["simulate", "--arrivals", "poisson:300", *MODEL, *plot]) == 2
    assert "--plot: plots need matplotlib: pip install 'headway[plots]'" in capsys.readouterr().err


# ---- lengths

LENGTHS = ("--latency", "4,0", "--token-ms", "0.004", "--lengths", "lognormal:64,1,512")


def test_lengths_are_composed_side_by_side() -> None:
    found = results(
        *("--arrivals", "poisson", "--load", "0.5", *LENGTHS, "--requests", "2000"),
        *("--max-batch-cost", "16384", "--max-queue", "512", "--policy", "auto"),
        *("--compose", "dp", "--compose", "packed", "--compose", "buckets", "--buckets", "64,512"),
    )
    assert [each["compose"] for each in found] == ["dp", "packed", "buckets"]
    assert found[1]["padding_waste"] == 0.0 < found[0]["padding_waste"]
    assert all(each["long_p99_ms"] > 0 for each in found)
    assert all(each["load"] == 0.5 for each in found)


def test_a_number_is_the_length_of_all() -> None:
    found = results(
        *("--arrivals", "poisson:50", "--latency", "4,0", "--token-ms", "0.004"),
        *("--lengths", "64", "--requests", "500", "--policy", "auto"),
    )
    assert (found[0]["answered"], found[0]["padding_waste"]) == (500, 0.0)


def test_lengths_come_from_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "lengths.csv"
    trace.write_text("length\n10\n500\n")
    found = results(
        *("--arrivals", "poisson:50", "--latency", "4,0", "--token-ms", "0.004"),
        *("--lengths", f"trace:{trace}", "--requests", "500", "--policy", "auto"),
    )
    assert found[0]["answered"] == 500


def test_without_lengths_nothing_is_padded() -> None:
    found = results("--arrivals", "poisson:50", *MODEL, "--policy", "auto")
    assert (found[0]["padding_waste"], found[0]["long_p99_ms"], found[0]["compose"]) == (
        0.0,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--lengths", "normal:3"), "lognormal:MEDIAN,SIGMA"),
        (("--lengths", "lognormal:64"), "lognormal:MEDIAN,SIGMA"),
        (("--lengths", "0"), "0 does not lie between 1 and"),
        (("--lengths", "lognormal:0,1"), "more than 0"),
        (("--lengths", "trace:/nowhere.csv"), "nowhere.csv"),
        (("--compose", "dp"), "needs --lengths"),
        (("--token-ms", "1"), "needs --lengths"),
        (("--lengths", "lognormal:64,1", "--compose", "best"), "not one of"),
        (("--lengths", "lognormal:64,1", "--buckets", "many"), "pow2"),
    ],
)
def test_a_mistake_about_lengths_is_named(
    flags: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--arrivals", "poisson:50", *MODEL, *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert told in err


# ---- replicas

FLEET = ("--arrivals", "poisson", "--load", "0.5", *MODEL, "--replicas", "1,1,3")


def test_replicas_are_compared_by_route() -> None:
    found = results(*FLEET)
    assert [each["route"] for each in found] == ["round-robin", "random", "two-choices", "finish"]
    by_turns, *_, finish = found
    assert finish["p99_ms"] < by_turns["p99_ms"] / 2
    assert len(finish["shares"]) == 3
    assert (finish["dropped"], finish["sent_again"]) == (0, 0)
    table = headway("simulate", *FLEET, "--route", "finish", "--lose-s", "0.05")
    assert table.returncode == 0, table.stderr
    assert "auto, finish" in table.stdout


def test_a_fleet_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "fleet.png"
    more = ("--autoscale", "1,6", "--cold-start-s", "2", "--route", "finish")
    done = headway("simulate", *FLEET, *more, "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (("--route", "finish"), "--route"),
        (("--autoscale", "1,2"), "--autoscale"),
        (("--replicas", "2", "--workers", "2"), "--workers"),
        (("--replicas", "2", "--seeds", "2"), "--seeds"),
        (("--replicas", "2", "--policy", "oracle"), "--policy"),
        (("--replicas", "2", "--target-wait-ms", "5"), "--target-wait-ms"),
        (("--replicas", "2", "--autoscale", "3,1"), "--autoscale"),
        (("--replicas", "2", "--generate"), "--generate"),
    ],
)
def test_flags_that_do_not_fit_replicas_are_refused_by_name(
    flags: tuple[str, ...], name: str
) -> None:
    done = headway("simulate", "--arrivals", "poisson:100", *MODEL, *flags)
    assert done.returncode == 2
    assert name in done.stderr


def test_tenants_with_rates_of_their_own_are_told_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["simulate", "--arrivals", "poisson", "--tenants", "a=1:rate=20,b=1:rate=60", *MODEL]
    assert main([*command, "--json", "--policy", "auto"]) == 0
    [result] = json.loads(capsys.readouterr().out)
    tenants = result["tenants"]
    assert tenants["a"]["offered"] + tenants["b"]["offered"] == 2000
    assert tenants["a"]["offered"] == pytest.approx(500, rel=0.2)
    assert main([*command, "--policy", "auto"]) == 0
    assert "tenant" in capsys.readouterr().out


def test_a_trace_with_tenants_is_simulated_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("timestamp,tenant\n0,a\n0.01,b\n0.03,b\n")
    command = ["simulate", "--arrivals", f"trace:{trace}", *MODEL, "--json", "--policy", "auto"]
    assert main(command) == 0
    [result] = json.loads(capsys.readouterr().out)
    offered = {name: each["offered"] for name, each in result["tenants"].items()}
    assert offered == {"a": 667, "b": 1333}


@pytest.mark.parametrize(
    ("arrivals", "tenants", "said"),
    [
        ("poisson:5", "a=1:rate=1", "without one"),
        ("closed:5,1", "a=1:rate=1", "open loop"),
        ("poisson", "a=1:rate=1,b=1", "b has no rate"),
        ("poisson", "a=1:speed=1", "does not have the form"),
        ("poisson", "a=1,a=2", "once each"),
    ],
)
def test_rates_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], arrivals: str, tenants: str, said: str
) -> None:
    command = ["simulate", "--arrivals", arrivals, "--tenants", tenants, *MODEL]
    assert main(command) == 2
    assert said in capsys.readouterr().err
