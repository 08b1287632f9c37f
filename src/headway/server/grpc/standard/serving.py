"""A service's methods as a stack takes them, by what its .proto says of them."""

from typing import Any

import grpc
from google.protobuf import descriptor_pb2


def streaming_of(service: Any) -> dict[str, tuple[bool, bool]]:
    """By method, whether the client and whether the server sends many messages. (Its descriptor
    itself says so only since protobuf 4.22.)"""
    described = descriptor_pb2.ServiceDescriptorProto()
    service.CopyToProto(described)
    return {each.name: (each.client_streaming, each.server_streaming) for each in described.method}


def handlers_of(service: Any, messages: Any, methods: object) -> grpc.GenericRpcHandler:
    """`service`: its descriptor; `messages`: the generated module; `methods`: an object that has
    them by name."""
    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    streaming = streaming_of(service)
    return grpc.method_handlers_generic_handler(
        service.full_name,
        {
            each.name: makers[streaming[each.name]](
                getattr(methods, each.name),
                request_deserializer=getattr(messages, each.input_type.name).FromString,
                response_serializer=getattr(messages, each.output_type.name).SerializeToString,
            )
            for each in service.methods
        },
    )
