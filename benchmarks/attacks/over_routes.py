"""Attacks on the HTTP port by what bodies say: values, forms, files and chats that cost much more
to look at than to send, and streams that nobody reads."""

import contextlib
import io
import json
import socket
import time
from collections.abc import Collection, Iterable

from benchmarks.attacks.over_http import is_dropped
from benchmarks.attacks.scene import MIB, Attack, Outcome, Target
from benchmarks.attacks.sockets import status_of

_BOUNDARY = "x" * 70
_FORM = f"Content-Type: multipart/form-data; boundary={_BOUNDARY}"
_PART = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n'
_CHAT = "/v1/chat/completions"


def _sent(
    target: Target,
    tried: str,
    asks: Iterable[tuple[str, bytes] | tuple[str, bytes, str]],
    expected: Collection[int],
) -> Outcome:
    """All of them, again and again; 401 where the attacker has no key."""
    found: list[int | None] = []
    asks, ends_at = list(asks), time.monotonic() + target.seconds
    while not found or time.monotonic() < ends_at:
        found += [status_of(target.ask(*each)) for each in asks]
    counted = ", ".join(f"{found.count(each)} × {each or 'cut'}" for each in dict.fromkeys(found))
    allowed = {*expected} if target.key else {401, None}  # hung up on before all was sent
    return Outcome(f"{tried}: {len(found)} times", counted, set(found) <= allowed)


def wrong_values(target: Target) -> Outcome:
    """Each of them is a mistake, and could become an object of its own."""
    small = b'{"values":[' + b'"a",' * 15_000 + b"1]}"
    large = b'{"values":[' + b'"a",' * 200_000 + b"1]}"
    asks = [("/v1/predict/forms", small), ("/v1/predict/forms", large)]
    return _sent(target, "15,000 and 200,000 wrong values for a pydantic model", asks, {400})


def many_objects(target: Target) -> Outcome:
    small = b'{"parts":[' + b"{}," * 18_000 + b"{}]}"
    large = b'{"parts":[' + b"{}," * 300_000 + b"{}]}"
    asks = [("/v1/predict/forms", small), ("/v1/predict/forms", large)]
    return _sent(target, "18,000 and 300,000 objects for a pydantic model", asks, {413})


def other_kinds(target: Target) -> Outcome:
    numbers = b"[" + b"1.5," * 200_000 + b"1]"
    asks = [
        ("/v1/predict/shout", numbers),
        ("/v1/models/shout:predict", b'{"instances":[' + numbers + b"]}"),
        ("/v1/embeddings", b'{"model":"shout","input":' + numbers + b"}"),
        ("/v2/models/shout/generate", b'{"text_input":' + numbers + b"}"),
        ("/models/shout", b'{"inputs":' + numbers + b"}"),
    ]
    return _sent(target, "200,000 numbers for a model of texts, 5 routes", asks, {400, 413})


def forms(target: Target) -> Outcome:
    many = (_PART * 7_000 + f"--{_BOUNDARY}--\r\n").encode()
    near = f"\r\n--{_BOUNDARY[:-1]}".encode() * 12_000
    asks = [
        ("/v1/predict/shout", many, _FORM),
        ("/v1/predict/shout", _PART.encode()[:-3] + near, _FORM),  # it never ends
        ("/v1/audio/transcriptions", many, _FORM),
    ]
    return _sent(target, "7,000 parts; boundaries that are none", asks, {400, 413, 404})


def image_bomb(target: Target) -> Outcome:
    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (8_000, 8_000)).save(file, "PNG")
    asks = [("/v1/predict/photos", file.getvalue(), "Content-Type: image/png")]
    tried = f"64 million pixels in {len(file.getvalue()):,} bytes"
    return _sent(target, tried, asks, {413})


def chats(target: Target) -> Outcome:
    """What a chat may bring beside its messages."""
    say = [{"role": "user", "content": "hello"}]
    deep: dict[str, object] = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    options: list[dict[str, object]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": deep}}},
        {"logit_bias": {str(number): 1 for number in range(50_000)}},
        {"tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(10_000)]},
        {"stop": ["a" * 10] * 50_000},
        {"guided_regex": "(a+)+" * 10_000},
    ]
    bodies = [{"model": target.chat_model, "messages": say, **option} for option in options]
    bodies.append({"model": target.chat_model, "messages": say * 20_000, "n": 100})
    asks = [(_CHAT, json.dumps(body).encode()) for body in bodies]
    return _sent(
        target, "schemas, biases, tools, stops, messages by the thousand", asks, {400, 413}
    )


def unread_events(target: Target) -> Outcome:
    """A stream that goes on and on, and is not read."""
    body = json.dumps(
        {"model": "talk", "messages": [{"role": "user", "content": "a"}], "stream": True}
    ).encode()
    if not target.key:
        return _sent(target, "a stream that is not read", [(_CHAT, body)], ())
    ask = target.head(_CHAT, f"Content-Length: {len(body)}") + body
    dropped = 0
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(target.connect()) for _ in range(8)]
        for each in connections:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with contextlib.suppress(OSError):
                each.sendall(ask)
        for each in connections:
            dropped += is_dropped(each, b"\r\n" * MIB)
    return Outcome("8 streams of 1 MB a step, none read", f"{dropped} hung up on", dropped == 8)


_TRAPS = (
    *("exit", "interrupt", "cancelled", "generator", "trap", "mute", "long", "turncoat", "proxy"),
)


def traps(target: Target) -> Outcome:
    """A tenant's text makes a model raise what ends programs, answer with what cannot be looked at,
    or fail with 50 MB of text."""
    asks = [("/v1/predict/traps", json.dumps(each).encode()) for each in _TRAPS]
    found, longest, ends_at = set[int | None](), 0, time.monotonic() + target.seconds
    while not found or time.monotonic() < ends_at:
        for ask in asks:
            answer = target.ask(*ask)
            found.add(status_of(answer))
            longest = max(longest, len(answer))
    is_refused = found <= ({500, 503} if target.key else {401, None}) and longest < 32 * 2**10
    told = f"{sorted(map(str, found))}, the longest answer {longest:,} bytes"
    return Outcome(
        f"{len(_TRAPS)} results and exceptions that turn on the server", told, is_refused
    )


ATTACKS: dict[str, Attack] = {
    "wrong values": wrong_values,
    "many objects": many_objects,
    "values of another kind": other_kinds,
    "forms of many parts": forms,
    "image bomb": image_bomb,
    "chats that ask for much": chats,
    "events that nobody reads": unread_events,
    "results that turn on the server": traps,
}
OF_BODIES = tuple(name for name, attack in ATTACKS.items() if attack is not unread_events)
