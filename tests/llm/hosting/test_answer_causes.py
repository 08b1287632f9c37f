"""What `headway explain` says of a language model's answers, each case brought about for real."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import MOST_S, Serving, serving

pytestmark = pytest.mark.real_time
ADMIN = {"admin_without_key": True}
CACHE = 17 * 8192 / 2**30  # GiB: the blocks of one whole context


def ask(served: Serving, name: str, *, max_tokens: int, n: int = 1) -> httpx.Response:
    parameters = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "n": n}
    body = {"model": "tiny", "prompt": "ab", **parameters}
    return httpx.post(
        f"{served.url}/v1/completions", json=body, headers={"X-Request-Id": name}, timeout=MOST_S
    )


def story(served: Serving, name: str) -> Any:
    end = time.monotonic() + MOST_S
    while True:  # the end of a request follows its last byte
        route = f"{served.url}/admin/explain/requests"
        answer = httpx.get(route, params={"id": name}, timeout=MOST_S)
        if answer.status_code == 200:
            [found] = answer.json()["requests"]
            return found
        assert time.monotonic() < end, answer.text
        time.sleep(0.01)


def test_an_answer_is_explained_in_its_head_and_later(folder: Path) -> None:
    with serving(folder, server=ADMIN) as served:
        ask(served, "first", max_tokens=60)
        answer = ask(served, "mine", max_tokens=200)
        found = story(served, "mine")
        page = httpx.get(f"{served.url}/admin/explain", timeout=MOST_S).json()
    named = [each.partition(";")[0] for each in answer.headers["server-timing"].split(", ")]
    assert named == ["queue", "prefill", "decode"]
    assert list(found["parts_ms"]) == [
        *("before", "queued", "prefill", "decode", "preempted", "answer"),
    ]
    assert sum(found["parts_ms"].values()) == pytest.approx(found["took_ms"], abs=0.01)
    # On a machine that is held up for a moment, any part may be the longest.
    assert found["cause"] == "decode" or found["parts_ms"]["decode"] < found["took_ms"] / 2
    if found["cause"] == "decode":
        assert found["why"].startswith("it has 200 tokens, ")
    last = page["answers"][-1]
    assert (last["model"], last["code"], last["tokens"], last["preemptions"]) == (
        *("tiny", "length", 200, 0),
    )
    assert last["arrived_at"] <= last["admitted_at"] <= last["first_at"] <= last["ended_at"]


def test_it_waited_for_a_place(folder: Path) -> None:
    with serving(folder, server=ADMIN, max_sequences=1) as served:
        much = {"max_tokens": 200, "n": 8}
        before = threading.Thread(target=ask, args=(served, "before"), kwargs=much)
        before.start()
        while not getattr(served.model.now(), "running", 0):
            time.sleep(0.001)
        ask(served, "mine", max_tokens=2)
        before.join()
        found = story(served, "mine")
    assert found["cause"] == "behind_others"
    assert "ms for a place beside" in found["why"]
    assert "max_sequences" in found["advice"]


def test_it_waited_for_the_beginning_that_another_one_computed(folder: Path) -> None:
    small = {"max_sequences": 2, "step_tokens": 16}
    with serving(folder, server=ADMIN, **small) as served:
        body = {"model": "tiny", "prompt": "ab" * 60, "max_tokens": 2, "n": 2}
        told = {"Headway-Explain": "1", "X-Request-Id": "mine"}
        answer = httpx.post(f"{served.url}/v1/completions", json=body, headers=told, timeout=MOST_S)
        found = story(served, "mine")
        page = httpx.get(f"{served.url}/admin/explain", timeout=MOST_S).json()
    computed, waited = sorted(page["answers"][-2:], key=lambda each: each["awaited_tokens"])
    assert computed["cached_tokens"] == computed["awaited_tokens"] == 0
    assert waited["cached_tokens"] >= waited["awaited_tokens"] >= 32
    assert "awaited_tokens=" in answer.headers["headway-batch"]
    text = f"({waited['awaited_tokens']} since another answer had computed them)"
    assert any(text in line for line in found["text"]), found["text"]


def test_it_was_preempted(folder: Path) -> None:
    """Of three answers that grow together, the cache holds one whole."""
    with serving(folder, server=ADMIN, kv_cache_gib=CACHE) as served:
        ask(served, "mine", max_tokens=220, n=3)
        found = story(served, "mine")
    assert found["cause"] == "preempted", found["text"][-4:]
    assert found["items"] == 3
    assert "because the KV cache was full" in found["why"]
    assert "kv_cache_gib" in found["advice"]
