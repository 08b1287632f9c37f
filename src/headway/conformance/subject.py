"""The server that is checked, over HTTP, and requests that its model's metadata allows."""

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from headway.conformance.checks import Broken, NotOffered, hold
from headway.errors import ConfigError
from headway.loadgen.tensors import TensorInput

_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # in lower case
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Broken(f"the answer is not JSON: {self}") from None

    def ok(self) -> Any:
        """The JSON of a success."""
        hold(self.status == 200, f"200 is expected, not {self}")
        return self.json()

    def __str__(self) -> str:
        return f"{self.status} {self.body[:_LONGEST_SHOWN].decode(errors='replace')!r}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input of a request."""

    name: str
    datatype: str
    values: NDArray[Any]

    def about(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.values.shape)}

    def flat(self) -> list[Any]:
        return [_plain(each) for each in self.values.ravel().tolist()]

    def nested(self) -> Any:
        if self.datatype != "BYTES":
            return self.values.tolist()
        texts = np.array([_plain(each) for each in self.values.ravel()], object)
        return texts.reshape(self.values.shape).tolist()


@dataclass(slots=True)
class Subject:
    url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    timeout_s: float = 30.0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    _metadata: Any = None

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{self.url}: {error}") from None
        if not parts.hostname or parts.scheme not in ("http", "https"):
            raise ConfigError(f"{self.url}: an address like http://127.0.0.1:8000 is expected")
        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        more: dict[str, Any] = {"timeout": self.timeout_s}
        if parts.scheme == "https":
            kind, more["context"] = http.client.HTTPSConnection, self.tls
        connection = kind(parts.hostname, port, **more)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(
                method, parts.path.rstrip("/") + path, body, {**self.headers, **named}
            )
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        except ConnectionRefusedError:
            raise Broken(f"{method} {path}: no server listens at {self.url}") from None
        except (OSError, http.client.HTTPException) as error:
            raise Broken(f"{method} {path}: no answer: {error or type(error).__name__}") from error
        finally:
            connection.close()

    @property
    def path(self) -> str:
        return f"/v2/models/{quote(self.model, safe='')}"

    def post(self, body: Any, path: str = "") -> Answer:
        return self.ask(
            "POST",
            path or f"{self.path}/infer",
            json.dumps(body).encode(),
            Content_Type="application/json",
        )

    @property
    def metadata(self) -> Any:
        if self._metadata is None:
            self._metadata = self.ask("GET", self.path).ok()
        return self._metadata

    def extensions(self) -> list[str]:
        found = self.ask("GET", "/v2").ok().get("extensions", [])
        return [str(each) for each in found]

    def needs(self, extension: str) -> None:
        if extension not in self.extensions():
            raise NotOffered(f"{extension} is not among the server's extensions")

    def tensors(self) -> list[Tensor]:
        """One row for each input, the same in each call."""
        rng = np.random.default_rng(5)
        try:
            inputs = [
                TensorInput.of(about, rows=1, shape=self.shapes.get(about["name"]))
                for about in self.metadata["inputs"]
            ]
            return [Tensor(each.name, each.datatype, each.values(rng, 1)) for each in inputs]
        except (KeyError, TypeError) as error:
            raise Broken(f"the metadata of {self.model} names no inputs: {error!r}") from error

    def request(self, **more: Any) -> dict[str, Any]:
        """A request that the model should answer."""
        inputs = [{**each.about(), "data": each.flat()} for each in self.tensors()]
        return {"inputs": inputs, **more}


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def outputs_of(answer: Any) -> dict[str, dict[str, Any]]:
    hold(isinstance(answer, dict), f"an object is expected, not {answer!r:.200}")
    outputs = answer.get("outputs")
    is_list = isinstance(outputs, list) and all(isinstance(each, dict) for each in outputs)
    hold(is_list and outputs, f"outputs: an array of tensors is expected, not {outputs!r:.200}")
    return {str(each.get("name")): each for each in outputs}
