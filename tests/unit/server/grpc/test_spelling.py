"""The messages of a stream of texts are those that each text would have had by itself."""

from typing import Any

import pytest

from headway.errors import ModelFailed
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.spelling import IS_END, ChunkEncoder
from headway.wire.http2.inbox import framed


def encode(chunk: Any) -> pb.ModelInferResponse:
    """As the codec does: texts and bytes as they are, others in some way of their own."""
    data = chunk.encode() if isinstance(chunk, str) else chunk
    raw = len(data).to_bytes(4, "little") + data if isinstance(data, bytes) else repr(data).encode()
    response = pb.ModelInferResponse(model_name="m", model_version="1", id="7")
    response.outputs.add(name="output", datatype="BYTES", shape=[1])
    response.raw_output_contents.append(raw)
    return response


def plain(chunk: Any) -> pb.ModelStreamInferResponse:
    response = encode(chunk)
    response.parameters[IS_END].bool_param = False
    return pb.ModelStreamInferResponse(infer_response=response)


@pytest.mark.parametrize(
    "chunks",
    [
        ["a", "", "ä€😀", "b" * 300, "c" * 20_000, *("d" * size for size in range(60, 130))],
        ["a", b"\xff", "b", 7, "c"],
        [1.5, "a", "b"],
        [b"x", b"y"],
    ],
)
def test_each_message_is_the_one_of_its_chunk(chunks: list[Any]) -> None:
    spelling, framing = ChunkEncoder(encode), ChunkEncoder(encode)
    for chunk in chunks:
        data = plain(chunk).SerializeToString()
        assert spelling.message_of(chunk).SerializeToString() == data
        assert framing.frame_of(chunk) == framed(data)


def test_a_text_that_is_no_text_is_refused_by_name() -> None:
    spelling = ChunkEncoder(encode)
    spelling.message_of("a")
    for spell in (spelling.message_of, spelling.frame_of):
        with pytest.raises(ModelFailed, match="surrogates not allowed"):
            spell("\ud800")


def test_a_model_that_changes_texts_is_asked_for_each() -> None:
    asked = []

    def shouted(chunk: str) -> pb.ModelInferResponse:
        asked.append(chunk)
        return encode(chunk.upper())

    spelling = ChunkEncoder(shouted)
    for chunk in "abc":
        message = spelling.message_of(chunk)
        assert message.infer_response.raw_output_contents[0][4:] == chunk.upper().encode()
    assert asked == ["a", "b", "c"]
