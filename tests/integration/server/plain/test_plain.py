"""`POST /v1/predict/{model}`: one value as JSON in, its result out."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from real_server import Server


def test_one_value_in_its_result_out(server: Server) -> None:
    answer = server.http.post("/v1/predict/upper", json="hello")
    assert (answer.status_code, answer.json()) == (200, "HELLO")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]


def test_a_tensor_model_takes_one_row_plain_or_by_name(server: Server) -> None:
    row = [float(each) for each in range(16)]
    doubled = [2 * each for each in row]
    assert server.http.post("/v1/predict/double", json=row).json() == doubled
    assert server.http.post("/v1/predict/double", json={"x": row}).json() == doubled


def test_several_outputs_come_back_by_name(server: Server) -> None:
    answer = server.http.post("/v1/predict/arithmetic", json={"a": [5, 6], "b": [1, 2]})
    assert answer.json() == {"sum": [6, 8], "difference": [4, 4]}


def test_whole_numbers_keep_their_digits_beside_a_decimal_point(server: Server) -> None:
    asked = {"a": [1.0, 2**53 + 1], "b": [0, 2**62]}
    answer = server.http.post("/v1/predict/arithmetic", json=asked)
    assert answer.json()["sum"] == [1, 2**62 + 2**53 + 1]


def test_of_many_items_each_has_its_own_result_or_error(server: Server) -> None:
    answer = server.http.post("/v1/predict/root", json={"items": [4.0, -1.0, 9.0, "x"]})
    assert answer.status_code == 200
    four, negative, nine, text = answer.json()["results"]
    assert (four, nine) == (2.0, 3.0)
    assert "root" in negative["error"]
    assert "float" in text["error"]
    assert server.http.post("/v1/predict/root", json={"items": []}).json() == {"results": []}


def test_the_callers_request_id_comes_back(server: Server) -> None:
    answer = server.http.post("/v1/predict/upper", json="a", headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize(
    ("model", "body", "status", "part"),
    [
        ("nothing", b'"a"', 404, "no model 'nothing'; there are: arithmetic, double"),
        ("upper", b"{", 400, "is not JSON"),
        ("upper", b"", 400, "the body is empty: JSON is expected"),
        ("upper", b"\xff\xfe", 400, "not JSON"),
        ("upper", b"3", 400, "input"),
        ("upper", b'["a", "b"]', 400, "`str`, got `array`; several at once are sent as "),
        ("upper", b'{"text": "a"}', 400, "the body is the value itself, as in "),
        ("upper", b'{"x": [1, 1e400]}', 400, "x[1]: the number is beyond every float"),
        ("upper", b'{"a": 1', 400, "the body is not JSON: it is cut off."),
        ("half", b'{"x": [[1, 1, 1, 1]]}', 400, 'rows are sent as {"items": [[1, 1, 1, 1], ['),
        ("half", b"[[1, 1, 1, 1], [2, 2, 2, 2]]", 400, 'rows are sent as {"items": [[1, 1, 1'),
        ("arithmetic", b'{"a": [[1, 1]], "b": [[1, 1]]}', 400, 'sent as {"items": [{"a": ['),
        ("upper", b'{"items": 3}', 400, "items: a list is expected"),
        ("double", b"[1, 2]", 400, "x"),
        ("double", b'["a"]', 400, "x"),
        ("upper", b'"\xff"', 400, "not JSON"),
        ("upper", b"[" * 100_000, 400, "not JSON"),
        ("double", b'["1"' + b", 1" * 15 + b"]", 400, "x"),
        ("double", b"[null" + b", 1" * 15 + b"]", 400, "x"),
        ("double", b"[1e39" + b", 1" * 15 + b"]", 400, "not float32"),
        ("arithmetic", b'{"a": [1, 1.5], "b": [1, 1]}', 400, "not int64"),
        ("arithmetic", b'{"a": [1, 9223372036854775808], "b": [1, 1]}', 400, "input 'a'"),
        ("arithmetic", b'{"a": [1, 1e30], "b": [1, 1]}', 400, "not int64"),
        ("arithmetic", b'{"a": [true, 1], "b": [1, 1]}', 400, "not true or false"),
        ("double", b"[true" + b", 1" * 15 + b"]", 400, "not true or false"),
        ("half", b"[65505, 1, 1, 1]", 400, "not float16"),
        ("double", b'{"z": [1]}', 400, "['x'] is expected"),
        ("arithmetic", b"[1, 2]", 400, "['a', 'b'] is expected"),
        ("arithmetic", b'{"a": [1, 2, 3], "b": [1, 2]}', 400, "one row has the shape [2]"),
        ("root", b"-1.0", 500, "root"),
    ],
    ids=lambda each: repr(each[:30]) if isinstance(each, bytes) else "",
)
def test_a_mistake_is_told(server: Server, model: str, body: bytes, status: int, part: str) -> None:
    answer = server.http.post(f"/v1/predict/{model}", content=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert part in answer.json()["error"]
    assert "Traceback" not in answer.text


def test_a_timeout_header_is_a_504_without_retry_after(server: Server) -> None:
    with ThreadPoolExecutor() as pool, server.closed_gate() as wait_entered:
        first = pool.submit(server.http.post, "/v1/predict/gate", json=1.0)
        wait_entered()
        late = server.http.post("/v1/predict/gate", json=2.0, headers={"Headway-Timeout-Ms": "20"})
        assert late.status_code == 504
        assert "retry-after" not in late.headers
        server.keeper("open")
        assert first.result().json() == 1.0


def test_a_full_queue_is_a_503_that_says_when_to_come_back(server: Server) -> None:
    refused = threading.Event()
    refusals: list[httpx.Response] = []

    def ask(value: float) -> httpx.Response:
        answer = server.http.post("/v1/predict/gate", json=value)
        if answer.status_code == 503:
            refusals.append(answer)
            refused.set()
        return answer

    with ThreadPoolExecutor() as pool, server.closed_gate():
        calls = {value: pool.submit(ask, value) for value in (1.0, 2.0, 3.0, 4.0)}
        assert refused.wait(10), "one runs, one waits, the others have no room"
        server.keeper("open")
        answers = {value: call.result() for value, call in calls.items()}
    for value, answer in answers.items():
        assert answer.status_code == 503 or answer.json() == value
    assert int(refusals[0].headers["retry-after"]) >= 1
    assert "error" in refusals[0].json()
