"""The four models of the server under chaos. They misbehave on request, never by themselves.

Each answer carries the digest of its own input, computed where the model runs.
"""

import ctypes
import hashlib
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy

import headway

MIB = 2**20
WIDTH = 64  # bytes of a row of `vectors`
BIG_MIB = 32  # what a big text needs while it runs
HUGE_MIB = 4096  # more than any worker may have
LEAK_MIB = 24  # what a leak keeps for ever
# In a text before the first colon, in a row the first byte.
BEHAVIOURS = ("fine", "raise", "exit", "segfault", "hang", "freeze", "leak", "big", "huge")
_HOURS_S = 10_000


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class Misbehaving:
    """What an input may ask of the process it runs in."""

    def __init__(self) -> None:
        self._leaked: list[bytearray] = []

    def obey(self, behaviour: str) -> None:
        match behaviour:
            case "raise":
                raise ValueError("asked to raise")
            case "exit":
                os._exit(7)
            case "segfault":
                ctypes.string_at(0)
            case "hang":
                time.sleep(_HOURS_S)
            case "freeze":  # with the interpreter's lock held: no thread of it can run
                ctypes.PyDLL(None).sleep(_HOURS_S)
            case "leak":
                self._leaked.append(bytearray(LEAK_MIB * MIB))
            case "huge":
                bytearray(HUGE_MIB * MIB)


class Vectors(headway.TensorModel):
    """Rows of bytes to their digests: 2 ms and 0.1 ms a row."""

    inputs = (headway.Tensor("x", "uint8", (-1, WIDTH)),)
    outputs = (headway.Tensor("digest", "uint8", (-1, 8)),)

    def load(self) -> None:
        self._misbehaving = Misbehaving()
        time.sleep(0.1)

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = batch["x"]
        for row in rows:
            self._misbehaving.obey(BEHAVIOURS[row[0] % len(BEHAVIOURS)])
        time.sleep(0.002 + 0.0001 * len(rows))
        digests = [bytes.fromhex(digest_of(row.tobytes())) for row in rows]
        return {"digest": numpy.frombuffer(b"".join(digests), numpy.uint8).reshape(-1, 8)}


class Texts(headway.Model[str, str]):
    """Texts to their digests: 3 ms and 0.2 ms each; big ones need memory, all at once."""

    def load(self) -> None:
        self._misbehaving = Misbehaving()
        time.sleep(0.1)

    def predict(self, items: list[str]) -> list[str]:
        behaviours = [text.partition(":")[0] for text in items]
        needed = bytes(BIG_MIB * MIB * behaviours.count("big"))
        for behaviour in behaviours:
            self._misbehaving.obey(behaviour)
        time.sleep(0.003 + 0.0002 * len(items))
        del needed
        return [digest_of(text.encode()) for text in items]


class Stories(headway.Model[str, str]):
    """`fine:…:7` becomes seven chunks, 5 ms apart, each with the digest and its own number."""

    def load(self) -> None:
        self._misbehaving = Misbehaving()
        time.sleep(0.1)

    def stream(self, items: list[str]) -> Iterator[list[Any]]:
        digests = [digest_of(text.encode()) for text in items]
        lengths = [int(text.rpartition(":")[2]) for text in items]
        for behaviour in (text.partition(":")[0] for text in items):
            if behaviour != "raise":
                self._misbehaving.obey(behaviour)
        for step in range(max(lengths) + 1):
            time.sleep(0.005)
            yield [
                _entry(text, f"{digest}:{step}", is_over=step >= length)
                for text, digest, length in zip(items, digests, lengths, strict=True)
            ]


def _entry(text: str, chunk: str, *, is_over: bool) -> object:
    """In a stream, an exception among the entries is one item's own failure."""
    if text.startswith("raise:"):
        return ValueError("asked to raise")
    return headway.END if is_over else chunk


class Neighbour(headway.Model[str, str]):
    """In a thread of the server, with a short queue: what the others do must not reach it."""

    def predict(self, items: list[str]) -> list[str]:
        for text in items:
            if text.startswith("raise:"):
                raise ValueError("asked to raise")
        time.sleep(0.020 + 0.004 * len(items))
        return [digest_of(text.encode()) for text in items]


TOML = f"""
[server]
port = 0
grpc_port = 0
cache_dir = "cache"
admin_without_key = true
max_connections_per_address = 4096

[[models]]
name = "vectors"
target = "{__name__}:Vectors"
worker = "process"
workers = 2
execute_timeout_ms = 1000
heartbeat_timeout_s = 2
max_queue = 512
warm_up_s = 0.5

[[models]]
name = "texts"
target = "{__name__}:Texts"
worker = "process"
worker_memory_mb = 384
max_batch_size = 16
execute_timeout_ms = 1000
heartbeat_timeout_s = 2
max_queue = 512
warm_up_s = 0.5

[[models]]
name = "stories"
target = "{__name__}:Stories"
worker = "process"
workers = 2
execute_timeout_ms = 1000
heartbeat_timeout_s = 2
max_queue = 512
warm_up_s = 0.5
max_batch_size = 16

[[models]]
name = "neighbour"
target = "{__name__}:Neighbour"
worker = "thread"
max_batch_size = 8
max_queue = 32
warm_up_s = 0.5
"""
