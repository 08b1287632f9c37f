"""Server reflection: the services, and the files that describe them. Needs no key: it shows the
same on every Headway server, and no model's name."""

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.internal import builder

from headway.server.grpc.standard import pool, reflection_v1_pb2
from headway.wire.http2.status import Status


class Reflection:
    """The reflection method of one version: `messages` are that version's."""

    def __init__(self, services: Sequence[str], messages: Any) -> None:
        self._services = sorted(services)
        self._messages = messages
        self._files = pool.Default()

    async def ServerReflectionInfo(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            answer = self._answer(request)
            answer.original_request.CopyFrom(request)
            yield answer

    def _answer(self, request: Any) -> Any:
        messages = self._messages
        asked = request.WhichOneof("message_request")
        if asked == "list_services":
            names = [messages.ServiceResponse(name=name) for name in self._services]
            return messages.ServerReflectionResponse(
                list_services_response=messages.ListServiceResponse(service=names)
            )
        try:
            return self._described(asked, request)
        except KeyError:
            return self._error(Status.NOT_FOUND)

    def _described(self, asked: str | None, request: Any) -> Any:
        """Raises KeyError for an unknown name."""
        files, messages = self._files, self._messages
        match asked:
            case "file_by_filename":
                return self._file(files.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                return self._file(files.FindFileContainingSymbol(request.file_containing_symbol))
            case "file_containing_extension":  # none of our messages has any
                files.FindMessageTypeByName(request.file_containing_extension.containing_type)
                raise KeyError
            case "all_extension_numbers_of_type":
                kind = files.FindMessageTypeByName(request.all_extension_numbers_of_type)
                return messages.ServerReflectionResponse(
                    all_extension_numbers_response=messages.ExtensionNumberResponse(
                        base_type_name=kind.full_name
                    )
                )
            case _:
                return self._error(Status.INVALID_ARGUMENT)

    def _file(self, file: Any) -> Any:
        """The file's descriptor. Its imports would be needed, too; none of our files has any."""
        described = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(described)
        messages = self._messages
        return messages.ServerReflectionResponse(
            file_descriptor_response=messages.FileDescriptorResponse(
                file_descriptor_proto=[described.SerializeToString()]
            )
        )

    def _error(self, code: Status) -> Any:
        messages, text = self._messages, code.name.lower().replace("_", " ")
        return messages.ServerReflectionResponse(
            error_response=messages.ErrorResponse(error_code=code, error_message=text)
        )


def _renamed(messages: Any, package: str) -> Any:
    """The same file under another package's name, as if it had been generated."""
    described = descriptor_pb2.FileDescriptorProto()
    messages.DESCRIPTOR.CopyToProto(described)
    old, new = f".{described.package}.", f".{package}."
    described.name = described.name.replace("_v1.", f"_{package.rpartition('.')[2]}.")
    described.package = package
    for message in described.message_type:
        for field in [each for each in message.field if each.type_name]:
            field.type_name = field.type_name.replace(old, new)
    for method in described.service[0].method:
        method.input_type = method.input_type.replace(old, new)
        method.output_type = method.output_type.replace(old, new)
    file = pool.Default().AddSerializedFile(described.SerializeToString())
    names: dict[str, Any] = {}
    builder.BuildMessageAndEnumDescriptors(file, names)
    builder.BuildTopDescriptorsAndMessages(file, __name__, names)
    return SimpleNamespace(DESCRIPTOR=file, **names)


# v1 is v1alpha with another name.
VERSIONS = (reflection_v1_pb2, _renamed(reflection_v1_pb2, "grpc.reflection.v1alpha"))
