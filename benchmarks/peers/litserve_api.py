"""What litserve runs: the same MiniLM, on batches in order of arrival."""

from typing import Any

import litserve

from headway.models.ready.embed import MiniLM


class Embed(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        self._model = MiniLM()
        self._model.setup()
        self._model.load()

    def decode_request(self, request: dict[str, Any]) -> Any:
        return self._model.prepare(request["input"])

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, items: list[Any]) -> list[Any]:
        return self._model.predict(items)

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"embedding": output.values.tolist()}
