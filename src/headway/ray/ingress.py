"""v2 over gRPC through Serve's gRPC proxy.

Serve learns of the service when it starts, and its proxies call the replicas' methods by name:

    serve.start(grpc_options={"grpc_servicer_functions": ["headway.ray.ingress:add_inference"]})
"""

from collections.abc import AsyncIterator
from typing import Any, Final

from headway.server.grpc import inference_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
_STREAMS: Final = "ModelStreamInfer"  # the only one


def add_inference(servicer: Any, server: Any) -> None:
    """For `grpc_servicer_functions`. Serve puts its own handlers in the place of these; messages
    stay bytes until they are at the replica."""
    import grpc

    one, many = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    handlers = {
        each.name: (many if each.name == _STREAMS else one)(getattr(servicer, each.name))
        for each in SERVICE.methods
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),)
    )


class EncodedAnswer:
    """As Serve wants an answer: one that serialises itself."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:
        return self._data


def with_grpc(kind: type) -> type:
    """The class of a replica, with a method for each of the service's."""
    for each in SERVICE.methods:
        setattr(kind, each.name, (_stream if each.name == _STREAMS else _unary)(each.name))
    return kind


def _unary(name: str) -> Any:
    async def answer(self: Any, request: bytes, grpc_context: Any) -> EncodedAnswer:
        metadata, client = grpc_context.invocation_metadata(), grpc_context.peer()
        found = await self.grpc.answer(name, request, metadata, client)
        _end(found, grpc_context)
        return EncodedAnswer(found.message)

    return answer


def _stream(name: str) -> Any:
    async def answers(
        self: Any, requests: AsyncIterator[bytes], grpc_context: Any
    ) -> AsyncIterator[EncodedAnswer]:
        metadata, client = grpc_context.invocation_metadata(), grpc_context.peer()
        async for found in self.grpc.answers(name, requests, metadata, client):
            if found.message:
                yield EncodedAnswer(found.message)
            else:
                _end(found, grpc_context)

    return answers


def _end(found: Any, grpc_context: Any) -> None:
    import grpc

    if found.trailing:
        grpc_context.set_trailing_metadata(list(found.trailing))
    if found.status:
        grpc_context.set_code(getattr(grpc.StatusCode, found.status.name))
        grpc_context.set_details(found.details)
