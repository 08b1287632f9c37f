from headway.wire.headers import WireHeaders, request_id
from headway.wire.http1.wire import CLOSE, encode_chunk, encode_head, encode_stream_head
from headway.wire.messages import Response, StreamResponse


def lines(head: bytes) -> list[bytes]:
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def test_a_head_has_length_type_id_and_date() -> None:
    head = lines(encode_head(Response(b"abc", headers=(("Headway-Batch", "4"),)), "7", CLOSE))
    assert head[0] == b"HTTP/1.1 200 OK"
    assert {b"Content-Type: application/json", b"Content-Length: 3", b"X-Request-Id: 7"} < {*head}
    assert {b"Connection: close", b"Headway-Batch: 4"} < {*head}
    assert any(line.startswith(b"Date: ") for line in head)


def test_a_line_break_in_a_header_makes_no_new_header() -> None:
    response = Response(b"", content_type="a\r\nX: 1", headers=(("Y", "2\r\nZ: 3"),))
    head = lines(encode_head(response, "7"))
    assert not any(line.startswith((b"X: ", b"Z: ")) for line in head)


def test_no_content_has_no_length_and_an_odd_status_a_phrase() -> None:
    assert b"Content-Length" not in encode_head(Response(status=204), "7")
    assert encode_head(Response(status=499), "7").startswith(b"HTTP/1.1 499 Unknown\r\n")


def test_chunks_carry_their_length_in_hex() -> None:
    async def chunks():  # type: ignore[no-untyped-def]
        yield b""

    assert encode_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
    head = encode_stream_head(StreamResponse(chunks()), "7", is_chunked=True)
    assert b"Transfer-Encoding: chunked" in head


def test_headers_are_read_by_lower_case_names() -> None:
    headers = WireHeaders({b"accept": b"a", b"x": b"\xe9"})
    assert (headers["accept"], headers.get("x"), headers.get("y", "no")) == ("a", "é", "no")
    assert "accept" in headers
    assert "y" not in headers
    assert dict(headers) == {"accept": "a", "x": "é"}


def test_a_sane_id_is_kept_and_others_are_replaced() -> None:
    assert request_id(b"abc-1") == "abc-1"
    made = [request_id(sent) for sent in (None, b"", b"a b", b"x" * 129, b"a\r\nb", b"\xff")]
    assert len({*made}) == len(made)
    assert not {"", "a b", "x" * 129} & {*made}
