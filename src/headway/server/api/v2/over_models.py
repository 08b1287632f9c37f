"""What v2 has in common over HTTP and gRPC: its models, and what was worked out of each."""

from typing import Generic, TypeVar

from headway.hosting.registry import Registry, ServedModel
from headway.server.api.v2.shared_memory import SharedRegions
from headway.server.api.v2.tensors import NORMAL, Limits, Signature

Codec = TypeVar("Codec")  # of the direct way


class OverModels(Generic[Codec]):
    def __init__(
        self,
        registry: Registry,
        *,
        version: str = "0",
        regions: SharedRegions | None = None,
        limits: Limits = NORMAL,
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._version = version
        self._regions = regions  # None: shared memory is off
        self._signatures: dict[ServedModel, Signature] = {}
        self._codecs: dict[tuple[str, str], tuple[ServedModel, Codec | None]] = {}
        registry.on_gone(self._forget)

    def signature_of(self, model: ServedModel) -> Signature:
        """Worked out once per model, and forgotten with it."""
        signature = self._signatures.get(model)
        if signature is None:
            signature = Signature(
                model.inputs, model.outputs, self._limits, has_rows=model.max_batch_size > 0
            )
            self._signatures[model] = signature
        return signature

    def _forget(self, model: ServedModel) -> None:
        self._signatures.pop(model, None)
        for key in [key for key, known in self._codecs.items() if known[0] is model]:
            del self._codecs[key]
