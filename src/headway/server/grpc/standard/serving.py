"""A service's methods as a stack takes them, by what its .proto says of them."""

from typing import Any

from google.protobuf import descriptor_pb2

from headway.wire.http2.method import Method


def streaming_of(service: Any) -> dict[str, tuple[bool, bool]]:
    """Whether the client, and whether the server, sends many messages, for each method. (The
    descriptor itself has said so only since protobuf 4.22.)"""
    described = descriptor_pb2.ServiceDescriptorProto()
    service.CopyToProto(described)
    return {each.name: (each.client_streaming, each.server_streaming) for each in described.method}


def methods_of(service: Any, messages: Any, methods: object) -> dict[str, Method]:
    """The methods by path. `service`: the descriptor; `messages`: the generated module; `methods`:
    an object with a method of each name. None of them needs a key."""
    streaming = streaming_of(service)
    return {
        f"/{service.full_name}/{each.name}": Method(
            run=getattr(methods, each.name),
            parse=getattr(messages, each.input_type.name).FromString,
            serialise=getattr(messages, each.output_type.name).SerializeToString,
            takes_stream=streaming[each.name][0],
            gives_stream=streaming[each.name][1],
            is_open=True,
        )
        for each in service.methods
    }
