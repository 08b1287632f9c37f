"""Every client on every stack that serves it: success, and each kind of error that it can meet.

The statuses are those of docs/guides/serving.md, written out: a change of one must be meant.
"""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import pytest

pytest.importorskip("grpc")
pytest.importorskip("openai")
pytest.importorskip("tritonclient.grpc")
pytest.importorskip("tritonclient.http")
pytest.importorskip("uvicorn")

from clients import CLIENTS, HTTP, KSERVE_PYTHON, Asked, Call, Client, Curl, Refused
from served_models import vector_of
from stacks import MAX_BODY_BYTES, Stacks, Watched


class Pair(NamedTuple):
    """A client on a stack that serves it."""

    client: Client
    stack: str
    address: str

    @property
    def is_http(self) -> bool:
        return self.stack in HTTP

    def start(self, model: str, *texts: str, **more: Any) -> Call:
        return self.client.start(self.address, Asked(model, texts, **more))

    def refused(self, call: Call, http: int, grpc: str, message: str) -> Refused:
        with pytest.raises(Refused) as caught:
            call.result()
        assert caught.value.status == (str(http) if self.is_http else grpc)
        assert message in caught.value.message
        assert "Traceback" not in caught.value.message
        return caught.value

    def refused_for_now(self, call: Call, message: str) -> None:
        """503: it says when to come back, to clients that can be told."""
        refusal = self.refused(call, 503, "UNAVAILABLE", message)
        if self.client.shows_retry_after:
            assert int(refusal.retry_after or 0) >= 1


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with Stacks() as running:
        yield running


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Any]]:
    """Made when first asked for."""
    made: dict[str, Any] = {}
    yield made
    for each in made.values():
        each.close()


@pytest.fixture(
    params=[(name, stack) for name, client in CLIENTS.items() for stack in client.stacks],
    ids=lambda each: " on ".join(each),
)
def pair(request: pytest.FixtureRequest, clients: dict[str, Any], stacks: Stacks) -> Iterator[Pair]:
    name, stack = request.param
    if name == "curl" and shutil.which("curl") is None:
        pytest.skip("there is no curl")
    if name.startswith("kserve") and not KSERVE_PYTHON.exists():
        pytest.skip("kserve has an environment of its own: make .venv-kserve/.ready")
    if name not in clients:
        clients[name] = CLIENTS[name]()
    for model in ("words", "gate", "narrow", "strict"):
        stacks.model(model).forget()
    made = Pair(clients[name], stack, stacks.addresses.of(stack))
    yield made
    # Whatever went wrong, the next one is served.
    assert made.start("words", "next").result() == [vector_of("next").tolist()]


def test_success(pair: Pair) -> None:
    assert pair.start("words", "abba").result() == [[4, 2, 2, 1]]


def test_invalid_input(pair: Pair) -> None:
    call = pair.start("words", "abba", fits=False)
    pair.refused(call, 400, "INVALID_ARGUMENT", "")


def test_unknown_model(pair: Pair) -> None:
    call = pair.start("nothing", "abba")
    pair.refused(call, 404, "NOT_FOUND", "no model 'nothing'; there are: cold, ")


def test_input_too_large(pair: Pair) -> None:
    words = "larger than" if pair.is_http else "at most"
    call = pair.start("words", "a" * (MAX_BODY_BYTES + 1))
    pair.refused(call, 413, "INVALID_ARGUMENT", f"{words} {MAX_BODY_BYTES}")


def test_more_rows_than_the_queue_holds(pair: Pair) -> None:
    if isinstance(pair.client, Curl):
        pytest.skip("it sends one text")
    assert pair.start("few", "a", "ab", "b").result() == [
        vector_of(text).tolist() for text in ("a", "ab", "b")
    ]


def test_model_failed(pair: Pair) -> None:
    call = pair.start("words", "fail")
    pair.refused(call, 500, "INTERNAL", "words raised ValueError")


def test_an_error_of_ours_that_the_model_raises(pair: Pair) -> None:
    call = pair.start("words", "refuse")
    pair.refused(call, 400, "INVALID_ARGUMENT", "this text is not taken")


def test_queue_full(pair: Pair, stacks: Stacks) -> None:
    with stacks.occupied("narrow") as model, stacks.queued(model):
        pair.refused_for_now(pair.start("narrow", "third"), "the queue is full (1 rows)")


def test_shed(pair: Pair, stacks: Stacks) -> None:
    with stacks.occupied("strict"):
        pair.refused_for_now(pair.start("strict", "late"), "SLO")


def test_not_ready(pair: Pair) -> None:
    pair.refused_for_now(pair.start("cold", "abba"), "model 'cold' is not ready")


def test_closed_while_it_runs(pair: Pair, stacks: Stacks) -> None:
    with stacks.closing() as (model, close):
        call = pair.start(model.name, "abba")
        model.wait_arrived()
        close()
        pair.refused_for_now(call, "")


def test_deadline_exceeded(pair: Pair, stacks: Stacks) -> None:
    with stacks.occupied("gate"):
        call = pair.start("gate", "late", timeout_ms=20)
        refusal = pair.refused(call, 504, "DEADLINE_EXCEEDED", "")
        assert refusal.retry_after is None
    assert "late" not in seen(stacks.model("gate"))


@pytest.mark.parametrize("where", ["queued", "running"])
def test_a_client_that_leaves(pair: Pair, stacks: Stacks, where: str) -> None:
    """Its item is taken out of the queue, or its result is dropped; nobody else notices."""
    model = stacks.model("gate")
    text = f"gone from {pair.stack} {where} {type(pair.client).__name__}"
    assert model.gate is not None
    held: AbstractContextManager[Any] = (
        stacks.occupied("gate") if where == "queued" else nullcontext()
    )
    with held, model.gate.closed() if where == "running" else nullcontext():
        call = pair.start("gate", text)
        model.wait_arrived()
        if where == "running":
            assert model.gate.entered.wait(10)
        call.leave()
        model.wait_left()
    assert pair.start("gate", "after").result() == [vector_of("after").tolist()]
    assert (text in seen(model)) == (where == "running")


def seen(model: Watched) -> list[Any]:
    assert model.gate is not None
    return model.gate.seen
