"""What is at a URL, and requests for its models: from their metadata, or as given."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.errors import ConfigError, nearest
from headway.lab.workload import Sizes
from headway.loadgen.asking import RemoteServer, as_expected, only_model
from headway.loadgen.exchange import RESPONSE_TOKEN, TOKEN, Address, AskedRequest, post
from headway.loadgen.openai_bodies import (
    FORM,
    GENERATING,
    OPENAI_PATHS,
    audio_form,
    is_stream,
    openai_body,
)
from headway.loadgen.tensors import TensorInput, binary_body, json_body

_JSON = (("Content-Type", "application/json"),)
_MIXED = 1024  # where they differ in class or tenant: shares are then true to 0.1 %
VARIANTS = 64  # requests that are made before the load, and sent in turn
_BODIES = 5  # in seeds: random numbers of their own, beside those of arrivals and lengths


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the requests are to be, as asked for."""

    model: str = ""
    rows: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    lengths: Sizes | None = None  # of what has no fixed length, by request
    is_binary: bool | None = None  # None: where the server takes it
    bodies: Sequence[bytes] = ()  # as they are
    api: str = "auto"
    max_tokens: int = 64
    ignore_eos: bool = False  # exactly `max_tokens`, where the server knows this field
    headers: tuple[tuple[str, str], ...] = ()
    classes: Mapping[str, float] = field(default_factory=dict)  # shares of the requests
    tenants: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    @property
    def variants(self) -> int:
        """How many requests are made before the load starts."""
        return _MIXED if self.classes or self.tenants else VARIANTS

    def headers_of(self, number: int) -> tuple[tuple[str, str], ...]:
        """The headers of one request: those of all, and its own class and tenant."""
        rng = np.random.default_rng([self.seed, 6, number])
        found = list(self.headers)
        for header, shares in (
            ("Headway-Priority", self.classes),
            ("Headway-Tenant", self.tenants),
        ):
            if shares:
                weights = np.array(list(shares.values()))
                drawn = rng.choice(len(weights), p=weights / weights.sum())
                found.append((header, list(shares)[drawn]))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Target:
    """A route of a server, and the requests for it."""

    address: Address
    path: str
    api: str  # in words
    model: str
    server: str
    exchanges: list[AskedRequest]


def find_target(probe: RemoteServer, wanted: Wanted) -> Target:
    """Look at what the server says about itself, and make requests for it."""
    with as_expected(probe.url):
        return _target(probe, wanted)


def _target(probe: RemoteServer, wanted: Wanted) -> Target:
    address = probe.address
    if address.is_grpc:
        from headway.loadgen.grpc import grpc_target  # needs headway[grpc]

        return grpc_target(probe, wanted)
    if wanted.api in OPENAI_PATHS:
        return _openai(probe, wanted)
    if address.path:
        return _route(address, wanted)
    if _writes_text(probe, wanted):
        return _openai(probe, replace(wanted, api="chat"))
    about = _told(probe, "/v2")
    if about is None:
        raise ConfigError(
            f"{address.url} does not speak v2 (GET /v2); --api chat (or another) says which of "
            "OpenAI's routes it has, or give the URL of a route, with --data"
        )
    server = f"{about.get('name', '?')} {about.get('version', '')}"
    model = wanted.model or _only_model(probe)
    if wanted.bodies:
        path = f"/v1/predict/{model}"
        return Target(address, path, "plain JSON", model, server, _as_given(address, path, wanted))
    inputs = _inputs(probe, model, wanted)
    path = f"/v2/models/{model}/infer"
    is_binary = wanted.is_binary
    if is_binary is None:
        is_binary = "binary_tensor_data" in about.get("extensions", ())
    exchanges = [
        (_binary if is_binary else _plain)(address, path, inputs, number, wanted)
        for number in range(wanted.variants)
    ]
    api = "v2 binary" if is_binary else "v2 JSON"
    return Target(address, path, api, model, server.strip(), exchanges)


def _writes_text(probe: RemoteServer, wanted: Wanted) -> bool:
    """Is the model a language model, and does nothing asked for need tensors?"""
    if wanted.bodies or wanted.shapes or wanted.rows > 1 or wanted.is_binary is False:
        return False
    listed = (_told(probe, "/v1/models") or {}).get("data", [])
    models = [each for each in listed if wanted.model in ("", each["id"])]
    return len(models) == 1 and "max_model_len" in models[0]  # vLLM's field, and Headway's


def _openai(probe: RemoteServer, wanted: Wanted) -> Target:
    address, api = probe.address, wanted.api
    if address.path.endswith("/v1"):
        address = replace(address, path=address.path.removesuffix("/v1"))
    path, is_audio = OPENAI_PATHS[api], api == "transcriptions"
    model = ""  # given bodies name it
    if is_audio or not wanted.bodies:
        model = wanted.model or _only_of(replace(probe, address=address))
    # Clips are large: few are made, and `_mixed` sends them again with other classes and tenants.
    variants = VARIANTS if is_audio else wanted.variants
    bodies = wanted.bodies or [
        openai_body(
            api,
            model,
            np.random.default_rng([wanted.seed, _BODIES, number]),
            length=length_of(wanted, number),
            max_tokens=wanted.max_tokens,
            ignore_eos=wanted.ignore_eos,
        )
        for number in range(variants)
    ]
    if is_audio:
        bodies = [audio_form(model, each) for each in bodies]
    exchanges = [
        post(
            address,
            path,
            body,
            headers=wanted.headers_of(number),
            content_type=FORM if is_audio else "application/json",
            is_stream=api in GENERATING and is_stream(body),
            token=RESPONSE_TOKEN if api == "responses" else TOKEN,
        )
        for number, body in enumerate(_mixed(bodies, wanted))
    ]
    return Target(address, path, f"OpenAI {api}", model, "a server", exchanges)


def _only_of(probe: RemoteServer) -> str:
    told = _told(probe, "/v1/models")
    return only_model(probe.url, [each["id"] for each in told["data"]] if told else [])


def _route(address: Address, wanted: Wanted) -> Target:
    """The URL is that of a route."""
    if not wanted.bodies:
        raise ConfigError(f"{address.url} is one route: --data or --body says what to send it")
    if wanted.model:
        raise ConfigError(f"{address.url} is one route, which knows its model", field="--model")
    return Target(address, "", "JSON", "", "a server", _as_given(address, "", wanted))


def _as_given(address: Address, path: str, wanted: Wanted) -> list[AskedRequest]:
    return [
        post(address, path, body, headers=wanted.headers_of(number))
        for number, body in enumerate(_mixed(wanted.bodies, wanted))
    ]


def _mixed(bodies: Sequence[bytes], wanted: Wanted) -> Sequence[bytes]:
    """All of them; again and again, where few have to have every class and tenant."""
    if wanted.variants > max(VARIANTS, len(bodies)):
        return [bodies[number % len(bodies)] for number in range(wanted.variants)]
    return bodies


def _only_model(probe: RemoteServer) -> str:
    told = _told(probe, "/v2/repository/index", b"{}") or []
    names = [each["name"] for each in told if each.get("state", "READY") == "READY"]
    return only_model(probe.url, names)


def _told(probe: RemoteServer, path: str, body: bytes | None = None) -> Any:
    """The answer's JSON; None where there is no such route."""
    answer = probe.ask("GET" if body is None else "POST", path, body, () if body is None else _JSON)
    if answer.status in (401, 403):
        raise probe.refusal(path, answer)
    try:
        return json.loads(answer.body) if answer.status == 200 else None
    except (ValueError, RecursionError):
        return None


def _inputs(probe: RemoteServer, model: str, wanted: Wanted) -> list[TensorInput]:
    about = _told(probe, f"/v2/models/{model}")
    if about is None:
        told = _told(probe, "/v2/repository/index", b"{}") or []
        names = [each["name"] for each in told]
        raise ConfigError(
            f"{probe.url} has no model {model!r} that is ready{nearest(model, names)}",
            field="--model",
        )
    return tensor_inputs(model, about.get("inputs", []), wanted)


def tensor_inputs(
    model: str, inputs: Sequence[dict[str, Any]], wanted: Wanted
) -> list[TensorInput]:
    """From the model's metadata, and what is asked for. Raises ConfigError."""
    known = [each["name"] for each in inputs]
    for name in wanted.shapes:
        if name not in known:
            raise ConfigError(
                f"{model} has no input {name!r}{nearest(name, known)}", field="--shape"
            )
    found = [
        TensorInput.of(each, rows=wanted.rows, shape=wanted.shapes.get(each["name"]))
        for each in inputs
    ]
    if wanted.lengths is not None and not any(each.has_length for each in found):
        raise ConfigError(f"{model} has no text, and no axis without a length", field="--lengths")
    return found


def length_of(wanted: Wanted, number: int) -> int | None:
    return None if wanted.lengths is None else int(wanted.lengths[number % len(wanted.lengths)])


def _plain(
    address: Address, path: str, inputs: Sequence[TensorInput], number: int, wanted: Wanted
) -> AskedRequest:
    rng = np.random.default_rng([wanted.seed, 5, number])
    mark, body = json_body(inputs, f"bench-{number}", rng, length_of(wanted, number))
    return post(address, path, body, mark, headers=wanted.headers_of(number))


def _binary(
    address: Address, path: str, inputs: Sequence[TensorInput], number: int, wanted: Wanted
) -> AskedRequest:
    rng = np.random.default_rng([wanted.seed, 5, number])
    mark, head, body = binary_body(inputs, f"bench-{number}", rng, length_of(wanted, number))
    fields = (*wanted.headers_of(number), ("Inference-Header-Content-Length", str(len(head))))
    kind = "application/octet-stream"
    return post(address, path, head + body, mark, headers=fields, content_type=kind)


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", field="--body") from error


def read_bodies(path: Path) -> list[bytes]:
    """A file of JSON lines, one body each; or one body of JSON over several lines."""
    text = read_file(path)
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        for line in lines:
            json.loads(line)
    except ValueError:
        lines = [text.strip()]
        try:
            json.loads(text)
        except ValueError as error:
            raise ConfigError(
                f"{path} is neither JSON nor a file of JSON lines: {error}", field="--body"
            ) from error
    if not lines:
        raise ConfigError(f"{path} is empty", field="--body")
    return lines
