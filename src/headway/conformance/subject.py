"""The server that is checked, over HTTP, and requests that its model's metadata allows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from headway.conformance.checks import ClauseBroken, NotJudged, NotOffered, hold
from headway.loadgen.asking import HttpAnswer, NoAnswer, RemoteServer
from headway.loadgen.tensors import TensorInput

_LONGEST_SHOWN = 200


class SubjectAnswer(HttpAnswer):
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise ClauseBroken(f"the answer is not JSON: {self}") from None

    def ok(self) -> Any:
        """The JSON of a success."""
        hold(self.status == 200, f"200 is expected, not {self}")
        return self.json()

    def __str__(self) -> str:
        return f"{self.status} {self.body[:_LONGEST_SHOWN].decode(errors='replace')!r}"


@dataclass(frozen=True, slots=True)
class SubjectTensor:
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
    server: RemoteServer
    model: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    _metadata: Any = None
    _parameters: dict[str, Any] | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> SubjectAnswer:
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        try:
            return SubjectAnswer(*self.server.ask(method, path, body, named))
        except NoAnswer as error:
            self.server.ask("GET", "/v2/health/live")  # has it gone? Then no clause is broken
            raise ClauseBroken(f"{method} {path}: {error}") from error

    @property
    def path(self) -> str:
        return f"/v2/models/{quote(self.model, safe='')}"

    def post(self, body: Any, path: str = "") -> SubjectAnswer:
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

    @property
    def parameters(self) -> dict[str, Any]:
        """Of every good request. A model that writes text, by Triton's habits, is to write the same
        short text each time."""
        if self._parameters is None:
            answer = self.ask("GET", f"{self.path}/config")
            config = answer.json() if answer.status == 200 else {}
            policy = config.get("model_transaction_policy") or {}
            names = [each.get("name") for each in config.get("input") or []]
            writes = policy.get("decoupled") is True and names == ["text_input"]
            self._parameters = {"max_tokens": 8, "temperature": 0} if writes else {}
        return self._parameters

    def steady_outputs(self) -> dict[str, dict[str, Any]]:
        """Of the plain request. Raises NotJudged."""
        first, second = (outputs_of(self.post(self.request()).ok()) for _ in range(2))
        if first != second:
            raise NotJudged("the model answers the same request with other values each time")
        return first

    def tensors(self) -> list[SubjectTensor]:
        """One row for each input, the same in each call."""
        rng = np.random.default_rng(5)
        try:
            inputs = [
                TensorInput.of(about, rows=1, shape=self.shapes.get(about["name"]))
                for about in self.metadata["inputs"]
            ]
            return [SubjectTensor(each.name, each.datatype, each.values(rng, 1)) for each in inputs]
        except (KeyError, TypeError) as error:
            raise ClauseBroken(
                f"the metadata of {self.model} names no inputs: {error!r}"
            ) from error

    def request(self, **more: Any) -> dict[str, Any]:
        """A request that the model should answer."""
        inputs = [{**each.about(), "data": each.flat()} for each in self.tensors()]
        parameters = {"parameters": self.parameters} if self.parameters else {}
        return {"inputs": inputs, **parameters, **more}


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def outputs_of(answer: Any) -> dict[str, dict[str, Any]]:
    hold(isinstance(answer, dict), f"an object is expected, not {answer!r:.200}")
    outputs = answer.get("outputs")
    is_list = isinstance(outputs, list) and all(isinstance(each, dict) for each in outputs)
    hold(is_list and outputs, f"outputs: an array of tensors is expected, not {outputs!r:.200}")
    return {str(each.get("name")): each for each in outputs}
