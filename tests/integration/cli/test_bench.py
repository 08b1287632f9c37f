"""`headway bench` against real servers: ours, slow ones, and ones that break off."""

import itertools
import json
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from real_server import Server, served

import hostile_server as hostile
from headway.cli.bench import _Silent
from headway.cli.main import main
from headway.loadgen.asking import RemoteServer
from headway.loadgen.exchange import Address
from headway.loadgen.target import Wanted, find_target, read_bodies

MEASURED = (0, 3)  # a busy machine may make a run invalid; it then says so


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code = main(["bench", *arguments, "--json"])
    printed = capsys.readouterr().out
    return code, json.loads(printed) if printed else []


QUICK = ("--seconds", "0.5", "--warm-up", "0.1")


@pytest.mark.parametrize("form", [(), ("--json-tensors",)])
def test_an_open_loop_is_made_from_the_models_metadata(
    server: Server, capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    arguments = (server.url, "--model", "double", "--rate", "100", *QUICK, *form)
    code, [point] = bench(capsys, *arguments)
    assert code in MEASURED
    assert point["errors"] == {}
    assert point["answered"] == point["offered"] > 20
    assert point["latency_ms"]["p50"]["value"] > 0


def test_closed_loops_of_several_sizes(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", "double", "--concurrency", "1,4", *QUICK)
    code, points = bench(capsys, server.url, *arguments)
    assert code in MEASURED
    assert [point["connections"] for point in points] == [1, 4]
    assert all(point["answered"] > 10 and not point["errors"] for point in points)


def test_plain_json_and_any_route(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--rate", "100", *QUICK, "--data", '"word"')
    code, [point] = bench(capsys, server.url, "--model", "upper", *load)
    assert code in MEASURED
    assert not point["errors"]
    code, [point] = bench(capsys, f"{server.url}/v1/predict/upper", *load)
    assert code in MEASURED
    assert not point["errors"]


def test_a_file_of_bodies_is_sent_in_turn_and_its_errors_are_counted(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bodies.jsonl").write_text('"a"\n1.5\n')
    arguments = ("--model", "upper", "--rate", "100", "--body", str(tmp_path / "bodies.jsonl"))
    _, [point] = bench(capsys, server.url, *arguments, *QUICK)
    [(kind, times)] = point["errors"].items()
    assert kind.startswith("400")
    assert abs(times - point["answered"]) <= 1


def test_a_table_says_what_was_measured_and_whether_it_is_valid(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", server.url, "--model", "double", "--rate", "50", *QUICK]
    assert main([*arguments, "--slo-ms", "1000"]) in MEASURED
    printed = capsys.readouterr().out
    assert printed.startswith(f"double on {server.url} (headway")
    assert "poisson 50/s" in printed
    assert "100.0%" in printed
    assert "valid" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "1", "--concurrency", "1"), "one of them"),
        (("--arrivals", "gamma"), "needs --rate"),
        (("--arrivals", "gamma:5", "--rate", "5"), "given by --rate"),
        (("--arrivals", "closed:5,1", "--rate", "5"), "--concurrency"),
        (("--model", "doubel"), "no model 'doubel'"),
        (("--find", "p99<5"), "p99<=50ms"),
        (("--find", "p99<=5ms", "--rate", "5"), "finds the rate itself"),
        (("--against", "http://x"), "needs one load"),
        ((), "which model? it has arithmetic, double"),
        (("--model", "double", "--data", "{"), "no JSON"),
        (("--model", "double", "--data", "1", "--rows", "2"), "--rows"),
        (("--model", "double", "--shape", "y:1"), "no input 'y'"),
        (("--body", "/nowhere"), "No such file"),
        (("--concurrency", "8", "--max-in-flight", "2"), "--max-in-flight"),
        (("--rate", "8", "--precision", "2"), "--precision: is for --find"),
        (("--model", "double", "--data", "1", "--json-tensors"), "--json-tensors"),
        (("--model", "double", "--lengths", "5"), "no axis without a length"),
        (("--model", "double", "--shape", "x:1,16", "--rows", "2"), "1 rows"),
        (("--model", "double", "--insecure"), "--insecure: is for https://"),
        (("--api-key", "k", "--header", "authorization: l"), "one of them"),
        (("--classes", "high=1", "--header", "Headway-Priority: low"), "one of them"),
        (("--api", "chat", "--data", "{}", "--model", "m"), "--model"),
        (("--api", "transcriptions", "--data", "{}"), "--data: is JSON"),
        (("--api", "responses", "--ignore-eos"), "--ignore-eos"),
        (("--api", "chat", "--data", "{}", "--first-ms", "5"), '"stream": true'),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(
    server: Server, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main(["bench", server.url, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_server_that_is_not_there_is_said_and_exits_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert main(["bench", f"http://127.0.0.1:{port}"]) == 1
    assert "no server listens there" in capsys.readouterr().err


def test_a_request_that_the_server_refuses_is_not_sent_a_thousand_times(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", server.url, "--model", "double", "--shape", "x:1"]) == 1
    assert "the first request failed: 400 input 'x'" in capsys.readouterr().err


def test_two_servers_take_turns(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    load = (
        "--model",
        "double",
        "--concurrency",
        "2",
        "--seconds",
        "0.2",
        "--warm-up",
        "0",
        "--against",
        server.url,
        "--json",
    )
    assert main(["bench", server.url, *load]) in MEASURED
    told = json.loads(capsys.readouterr().out)
    assert len(told["points"]) == 10
    assert {each["figure"] for each in told["second_over_first"]} > {"answers/s", "p50"}


def test_the_highest_rate_that_holds_is_one_that_was_held(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server that answers no more than 5 at a time, after 50 ms each: 100/s."""
    room = threading.Semaphore(5)

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client may leave
            while connection.recv(65_536):
                with room:
                    time.sleep(0.05)
                connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with tcp_server(serve) as url:
        quick = ("--seconds", "0.6", "--warm-up", "0.1", "--precision", "50", "--json")
        code = main(["bench", url, "--data", "1", "--find", "p90<=300ms,errors<=1%", *quick])
        told = json.loads(capsys.readouterr().out)
    assert code in (0, 1, 3)
    passed = told["search"]["pass_rps"]
    if code == 0:  # not on a machine that is too busy to pass any rate
        assert passed in [each["rate_rps"] for each in told["probes"] if not each["saturated"]]
    assert told["search"]["objective"] == "p90<=300ms,errors<=1%"


# ---- servers with a known law


@contextmanager
def tcp_server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Each connection in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        threads = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/any"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def answering(
    seconds: float,
    answers: int = 10**9,
    *,
    version: bytes = b"1.1",
    seen: list[bytes] | None = None,
) -> Callable[[socket.socket], None]:
    """Answers each request after so long; hangs up after so many."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client may leave
            for _ in range(answers):
                request = connection.recv(65_536)
                if not request:
                    return
                if seen is not None:
                    seen.append(request)
                time.sleep(seconds)
                connection.send(b"HTTP/%b 200 OK\r\nContent-Length: 2\r\n\r\nok" % version)

    return serve


def test_a_limit_on_what_is_in_flight_does_not_hide_the_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """200 ms of service, 10 requests/s, one in flight: the n-th waits n × 100 ms (the coordinated
    omission that others report as 200 ms)."""
    with tcp_server(answering(0.2)) as url:
        arguments = ("--data", "1", "--rate", "10", "--arrivals", "constant")
        code, [point] = bench(
            capsys, url, *arguments, "--max-in-flight", "1", "--seconds", "2", "--warm-up", "0"
        )
    assert code == 3
    assert point["answered"] == 19
    assert point["latency_ms"]["max"] >= 0.2e3 + 18 * 0.1e3
    assert point["saturated"]


def test_a_server_that_hangs_up_after_each_answer_is_asked_on_new_connections(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with tcp_server(answering(0.001, answers=1)) as url:
        load = ("--data", "1", "--concurrency", "2", "--seconds", "1", "--warm-up", "0")
        _, [point] = bench(capsys, url, *load)
    assert point["answered"] > 2
    assert set(point["errors"]) <= {"the server closed the connection", "connection reset by peer"}


def test_a_server_of_http_1_0_closes_each_connection(capsys: pytest.CaptureFixture[str]) -> None:
    with tcp_server(answering(0.001, answers=1, version=b"1.0")) as url:
        load = ("--data", "1", "--concurrency", "2", "--seconds", "1", "--warm-up", "0")
        _, [point] = bench(capsys, url, *load)
    assert point["answered"] > 2
    assert point["errors"] == {}


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with a server's certificate and the authority that signed it."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "pair.pem"))
    return tmp_path


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_dies_makes_a_run_invalid_and_what_was_measured_is_kept(
    pair: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    files = ("--tls-cert", "pair.pem", "--tls-key", "pair.pem") if tls else ()
    verify = ssl.create_default_context(cafile=pair / "ca.pem") if tls else True
    started = ("served_models:Double", "--port", "0", "--grpc-port", "0", *files)
    with served(pair, *started, verify=verify, ends_with=-signal.SIGKILL) as running:
        # As soon as the load is under way.
        monkeypatch.setattr(_Silent, "tick", lambda _, so_far: so_far.answered > 1 and kill())
        kill = running.process.kill
        load = ("--concurrency", "2", "--seconds", "3", "--warm-up", "0")
        trusted = ("--ca", str(pair / "ca.pem")) if tls else ()
        code, [point] = bench(capsys, running.url, *load, *trusted)
    assert code == 3, point
    assert point["answered"] > 1
    assert any(fault.startswith("the server was away: ") for fault in point["faults"])


def test_a_slow_handshake_holds_up_no_other_connection(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair / "pair.pem")
    seen: list[bytes] = []
    numbers = itertools.count(1)

    def serve(connection: socket.socket) -> None:
        if next(numbers) == 2:  # after that of the first request: it waits for its neighbour
            end = time.monotonic() + 20
            while len(seen) < 5 and time.monotonic() < end:
                time.sleep(0.01)
        with suppress(OSError):
            answering(0.01, seen=seen)(context.wrap_socket(connection, server_side=True))

    with tcp_server(serve) as url:
        load = ("--data", "1", "--concurrency", "2", "--seconds", "2", "--warm-up", "0")
        trusted = ("--ca", str(pair / "ca.pem"))
        _, [point] = bench(capsys, url.replace("http:", "https:"), *load, *trusted)
    assert point["errors"] == {}
    assert point["answered"] > 5


def test_a_client_that_may_open_no_more_connections_says_so(tmp_path: Path) -> None:
    with tcp_server(answering(0.01)) as url:
        arguments = [url, "--data", "1", "--concurrency", "100", *QUICK, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "headway", "bench", *arguments],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60)),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 3, done.stderr
    [point] = json.loads(done.stdout)
    assert "this client can open no more connections: too many open files" in point["faults"]


def test_headers_are_sent_as_they_are_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_API_KEY", "k")
    seen: list[bytes] = []
    with tcp_server(answering(0.01, seen=seen)) as url:
        given = ("--header", "content-type: text/x", "--header", "X-A: 1", "--header", "X-A: 2")
        bench(capsys, url, "--data", "1", "--concurrency", "1", *given, *QUICK)
        head = seen[-1].partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert [line for line in head if line.startswith(b"content-type")] == [b"content-type: text/x"]
    assert [line for line in head if line.startswith(b"x-a")] == [b"x-a: 1", b"x-a: 2"]
    assert b"authorization: bearer k" in head


def test_given_chats_have_every_class(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[bytes] = []
    with tcp_server(answering(0.001, seen=seen)) as url:
        load = ("--api", "chat", "--data", "{}", "--classes", "high=1,low=1")
        bench(capsys, url.removesuffix("/any"), *load, "--concurrency", "4", *QUICK)
    classes = {line for each in seen for line in each.split(b"\r\n") if b"Priority" in line}
    assert classes == {b"Headway-Priority: high", b"Headway-Priority: low"}


def test_all_of_a_large_file_is_sent(tmp_path: Path) -> None:
    (tmp_path / "bodies.jsonl").write_text("".join(f"{number}\n" for number in range(12_000)))
    bodies = read_bodies(tmp_path / "bodies.jsonl")
    wanted = Wanted(bodies=bodies, classes={"high": 1, "low": 1})
    found = find_target(RemoteServer(Address.parse("http://h:1/any")), wanted)
    assert len({each.request for each in found.exchanges}) == 12_000


def test_a_closed_loop_claims_nothing_about_rates(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", server.url, "--model", "double", "--concurrency", "1", *QUICK])
    printed = capsys.readouterr().out
    assert "valid" in printed
    assert "kept up" not in printed
    assert "drift" not in printed


def test_what_is_not_answered_in_time_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with tcp_server(answering(0.2)) as url:
        load = ("--data", "1", "--rate", "40", "--timeout", "0.3", "--max-in-flight", "1")
        code, [point] = bench(capsys, url, *load, *QUICK)
    assert code == 3
    assert point["answered"] < point["offered"]
    assert set(point["errors"]) <= {"no answer in 0.3 s", "unanswered"}


def test_deadlines_classes_tenants_and_clients_that_leave_are_load(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--model", "double", "--rate", "100", "--classes", "high=1,low=1", "--tenants", "a,b")
    assert main(["bench", server.url, *load]) == 2
    assert "NAME=SHARE" in capsys.readouterr().err
    load = (*load[:-1], "a=1,b=8", "--deadline-ms", "5000")
    _, [point] = bench(capsys, server.url, *load, *QUICK)
    assert not point["errors"]
    with tcp_server(answering(0.05)) as url:
        _, [point] = bench(capsys, url, "--data", "1", "--rate", "50", "--cancel", "50%", *QUICK)
    assert set(point["errors"]) <= {"left by --cancel", "unanswered"}
    assert point["errors"]["left by --cancel"] > 1
    assert point["answered"] > 1


def test_requests_have_the_class_and_the_tenant_of_their_share() -> None:
    wanted = Wanted(classes={"high": 1, "low": 3}, tenants={"a": 1, "b": 1})
    drawn = [dict(wanted.headers_of(number)) for number in range(wanted.variants)]
    high = sum(each["Headway-Priority"] == "high" for each in drawn)
    assert high == pytest.approx(256, abs=50)
    assert {each["Headway-Tenant"] for each in drawn} == {"a", "b"}


# ---- OpenAI's routes


def streaming(tokens: int, gap_s: float) -> Callable[[socket.socket], None]:
    """A chat's answer as OpenAI streams it."""

    def chunk(event: str) -> bytes:
        data = f"data: {event}\n\n".encode()
        return b"%x\r\n%b\r\n" % (len(data), data)

    def serve(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # the run is over
            while request := connection.recv(65_536):
                if request.startswith(b"GET /v1/models"):
                    body = b'{"object":"list","data":[{"id":"tiny"}]}'
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                    connection.send(head + body)
                    continue
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                connection.send(head + chunk('{"choices":[{"delta":{"role":"assistant"}}]}'))
                for _ in range(tokens):
                    time.sleep(gap_s)
                    connection.send(chunk('{"choices":[{"delta":{"content":" w"}}]}'))
                connection.send(chunk("[DONE]") + b"0\r\n\r\n")

    return serve


def test_a_chats_tokens_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    with tcp_server(streaming(tokens=5, gap_s=0.02)) as url:
        root = url.removesuffix("/any")
        load = ("--api", "chat", "--concurrency", "2", "--first-ms", "5000", "--max-tokens", "5")
        _, [point] = bench(capsys, root, *load, "--seconds", "1", "--warm-up", "0.1")
        assert main(["bench", root, *load, "--seconds", "0.3", "--warm-up", "0"]) in MEASURED
    tokens = point["tokens"]
    assert not point["errors"]
    assert tokens["per_s"] * point["seconds"] == pytest.approx(5 * point["answered"])
    assert tokens["first_p50_ms"] >= 20
    assert tokens["between_p50_ms"] >= 10
    assert tokens["good_rps"] == pytest.approx(point["answered"] / point["seconds"])
    told = capsys.readouterr().out
    assert "tokens/s" in told
    assert "good/s" in told


def test_where_v2_is_not_spoken_the_flag_for_openais_routes_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with hostile.answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as url:
        assert main(["bench", url]) == 2
    assert "does not speak v2 (GET /v2); --api chat" in capsys.readouterr().err


def test_without_a_limit_no_answer_is_called_good(capsys: pytest.CaptureFixture[str]) -> None:
    with tcp_server(streaming(tokens=2, gap_s=0.01)) as url:
        root, load = url.removesuffix("/any"), ("--api", "chat", "--concurrency", "1")
        main(["bench", root, *load, "--seconds", "0.3", "--warm-up", "0"])
    told = capsys.readouterr().out
    assert "tokens/s" in told
    assert "good/s" not in told


def test_embeddings_are_asked_for_as_openai_has_them(
    minilm: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--api", "embeddings", "--lengths", "4", "--concurrency", "2")
    code, [point] = bench(capsys, minilm.url, *load, *QUICK)
    assert code in MEASURED
    assert not point["errors"]
    assert point["answered"] > 1
    assert point["tokens"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-tokens", "5", "--model", "double"), "--api chat"),
        (("--api", "embeddings", "--first-ms", "5"), "--api chat"),
        (("--api", "chat", "--max-tokens", "5", "--data", "{}"), "--max-tokens"),
        (("--api", "chat", "--rows", "5"), "tensors of v2"),
        (("--api", "chat"), "which model?"),
        (("--num-prompts", "5"), "here it is --seconds"),
    ],
)
def test_flags_of_another_api_are_refused(
    server: Server, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main(["bench", server.url, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_sweep_is_drawn(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "sweep.png"
    load = ("--model", "double", "--rate", "50,100", *QUICK, "--plot", str(picture))
    code, points = bench(capsys, server.url, *load)
    assert code in MEASURED
    assert len(points) == 2
    assert picture.stat().st_size > 1000
    assert main(["bench", server.url, *load[:-1], str(tmp_path / "a.txt")]) == 2
    assert "--plot" in capsys.readouterr().err


# ---- gRPC


@pytest.mark.parametrize("load", [("--rate", "100"), ("--concurrency", "3")])
def test_v2_over_grpc(
    server: Server, capsys: pytest.CaptureFixture[str], load: tuple[str, str]
) -> None:
    arguments = (f"grpc://{server.grpc}", "--model", "double", *load, *QUICK)
    code, [point] = bench(capsys, *arguments)
    assert code in MEASURED
    assert point["errors"] == {}
    assert point["answered"] > 20
    assert point["latency_ms"]["p50"]["value"] > 0


def test_a_call_that_is_larger_than_the_peers_window(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (f"grpc://{server.grpc}", "--model", "upper", "--lengths", "300000")
    code, [point] = bench(capsys, *arguments, "--concurrency", "1", *QUICK)
    assert code in MEASURED
    assert point["errors"] == {}
    assert point["answered"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "nowhere"), "NOT_FOUND"),
        (("--model", "double", "--json-tensors"), "--json-tensors"),
        (("--model", "double", "--data", "1"), "--data"),
        ((), "--model: "),
    ],
)
def test_what_cannot_be_sent_over_grpc_is_refused_by_name(
    server: Server, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main(["bench", f"grpc://{server.grpc}", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_call_that_the_server_refuses_is_not_sent_a_thousand_times(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--model", "double", "--shape", "x:1")
    assert main(["bench", f"grpc://{server.grpc}", *arguments]) == 1
    assert "the first request failed: 400 INVALID_ARGUMENT" in capsys.readouterr().err


def test_no_grpc_server_is_said_and_exits_with_1(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert main(["bench", f"grpc://127.0.0.1:{port}"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["bench", f"grpc://{server.address}"]) == 1  # it speaks HTTP/1.1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["bench", "grpc://127.0.0.1"]) == 2
    assert "grpc://127.0.0.1:8001" in capsys.readouterr().err
