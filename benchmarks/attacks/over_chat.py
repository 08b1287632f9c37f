"""Attacks on a language model: prompts and options that cost more to look at than to send, and
streams that are begun to be left."""

import contextlib
import itertools
import json
import time

from benchmarks.attacks.over_routes import chats
from benchmarks.attacks.scene import Attack, Outcome, Target
from benchmarks.attacks.sockets import read_some, status_of

_CHAT = "/v1/chat/completions"
_STREAMS = 40  # of one client at a time; the server takes 64 connections of it


def _body(target: Target, content: str, **options: object) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": target.chat_model, "messages": messages, **options}).encode()


def long_prompts(target: Target) -> Outcome:
    """Far beyond the context: all of it would have to be tokenised to count it."""
    bodies = [_body(target, "a" * 900_000), _body(target, "\U0001f600" * 200_000)]
    found, ends_at = [], time.monotonic() + target.seconds
    while not found or time.monotonic() < ends_at:
        found += [status_of(target.ask(_CHAT, body)) for body in bodies]
    counted = ", ".join(f"{found.count(each)} × {each}" for each in dict.fromkeys(found))
    is_refused = set(found) <= ({400, 413} if target.key else {401, None})
    return Outcome(f"prompts of 900,000 characters: {len(found)} times", counted, is_refused)


def left_streams(target: Target) -> Outcome:
    """Begun, and left at the first token: what each of them holds must come back."""
    body = _body(target, "hello", stream=True, max_tokens=200, ignore_eos=True)
    begun, ends_at = 0, time.monotonic() + target.seconds
    first: set[int | None] = set()
    while not begun or time.monotonic() < ends_at:
        with contextlib.ExitStack() as opened:
            streams = [opened.enter_context(target.connect()) for _ in range(_STREAMS)]
            for each in streams:
                each.sendall(target.head(_CHAT, f"Content-Length: {len(body)}") + body)
            begun += len(streams)
            first |= {status_of(read_some(each)) for each in streams[:8]}
    whole = status_of(target.ask(_CHAT, _body(target, "hello", max_tokens=4)))
    is_refused = whole == (200 if target.key else 401) and first <= {200, 401, 503}
    return Outcome(f"{begun:,} streams left at once", f"the next one: {whole}", is_refused)


def grammars(target: Target) -> Outcome:
    """They take gigabytes or many seconds to compile; the first two alone once ended a server."""
    forms: list[dict[str, object]] = [
        {"structured_outputs": {"regex": "a?" * 43000 + "a" * 43000}},
        {"structured_outputs": {"json": {"type": "integer", "multipleOf": 1499977}}},
    ]
    found: list[int | None] = []
    longest_s, ends_at = 0.0, time.monotonic() + target.seconds
    for number in itertools.count():
        if found and time.monotonic() >= ends_at:
            break
        factors = {"allOf": [{"multipleOf": 9973}, {"multipleOf": 9901 - 2 * number}]}
        forms[2:] = [
            {"structured_outputs": {"regex": f"({'|'.join('ab' * 14000)}){number}{'c?' * 900}"}},
            {"structured_outputs": {"json": {"type": "integer", **factors}}},
        ]
        for form in forms:
            began = time.monotonic()
            found.append(status_of(target.ask(_CHAT, _body(target, "hello", max_tokens=2, **form))))
            longest_s = max(longest_s, time.monotonic() - began)
    form = {"regex": "[ab]{3}"}
    own = status_of(target.ask(_CHAT, _body(target, "hello", structured_outputs=form)))
    counted = ", ".join(f"{found.count(each)} × {each}" for each in dict.fromkeys(found))
    is_refused = own == (200 if target.key else 401) and set(found) <= (
        {200, 400} if target.key else {401}
    )
    told = f"{counted}, within {longest_s:.1f} s; one that is small: {own}"
    return Outcome(f"{len(found)} grammars", told, is_refused)


ATTACKS: dict[str, Attack] = {
    "long prompts": long_prompts,
    "chats that ask for much": chats,
    "streams that are left": left_streams,
    "grammars": grammars,
}
