"""Unmodified `tritonclient.http` and `tritonclient.http.aio`."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from typing import Any
from uuid import uuid4

import numpy
import pytest
from real_server import Server

pytest.importorskip("tritonclient.http")
pytest.importorskip("tritonclient.http.aio")

import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

ROW = numpy.arange(16, dtype=numpy.float32)[None]


class Client:
    """One face for both clients: the aio one is driven to its end."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.runner = asyncio.Runner()
        module = triton if name == "http" else triton_aio
        self.client = self.runner.run(self._made(module, address))

    async def _made(self, module: Any, address: str) -> Any:
        return module.InferenceServerClient(address)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        bound = getattr(self.client, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            async def ask() -> Any:
                found = bound(*args, **kwargs)
                return await found if asyncio.iscoroutine(found) else found

            return self.runner.run(ask())

        return call

    def check_packs(self, algorithm: str | None) -> None:
        if algorithm and self.name == "aio" and not hasattr(triton_aio, "gzip"):
            pytest.skip("a bug of this tritonclient: its aio client never imports gzip and zlib")

    def end(self) -> None:
        self.close()
        self.runner.close()


@pytest.fixture(scope="module", params=["http", "aio"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    made = Client(request.param, server.address)
    yield made
    made.end()


def tensor(name: str, array: Any, datatype: str, *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def texts(*values: str) -> Any:
    return numpy.array([value.encode() for value in values], object)


# ---- what is there


def test_health(client: Client) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    assert client.is_model_ready("double", "1")
    assert not client.is_model_ready("double", "2")
    assert not client.is_model_ready("nothing")


def test_server_metadata_advertises_what_is_there(client: Client) -> None:
    found = client.get_server_metadata()
    assert found["name"] == "headway"
    assert {"binary_tensor_data", "classification", "statistics"} <= set(found["extensions"])


def test_model_metadata_and_config(client: Client) -> None:
    found = client.get_model_metadata("double")
    assert found["name"] == "double"
    assert found["versions"] == ["1"]
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 16]}]
    config = client.get_model_config("double")
    assert config["max_batch_size"] == 64
    [given] = config["input"]
    assert given == {"name": "x", "data_type": "TYPE_FP32", "dims": [16], "format": "FORMAT_NONE"}
    assert client.get_model_config("letters")["model_transaction_policy"]["decoupled"] is True
    assert client.get_model_metadata("upper")["inputs"][0]["datatype"] == "BYTES"


def test_the_repository_is_listed_and_an_unknown_model_is_neither_loaded_nor_unloaded(
    client: Client,
) -> None:
    index = client.get_model_repository_index()
    assert {"name": "double", "version": "1", "state": "READY", "reason": ""} in index
    for change in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="no model 'nobody'") as caught:
            change("nobody")
        assert "404" in str(caught.value.status())


def test_trace_and_log_settings_can_be_read(client: Client) -> None:
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.get_log_settings()["log_verbose_level"] == 0


def test_statistics_count_requests_rows_and_batches(client: Client) -> None:
    def figures() -> dict[str, Any]:
        [found] = client.get_inference_statistics("arithmetic")["model_stats"]
        return found

    before = figures()
    pair = numpy.ones((3, 2), numpy.int64)
    client.infer("arithmetic", [tensor("a", pair, "INT64"), tensor("b", pair, "INT64")])
    after = figures()
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] > before["execution_count"]
    assert after["version"] == "1"
    counts = {
        key: after["inference_stats"][key]["count"] - before["inference_stats"][key]["count"]
        for key in ("success", "queue", "compute_input", "compute_infer", "compute_output", "fail")
    }
    assert counts == {**dict.fromkeys(counts, 1), "fail": 0}
    names = {each["name"] for each in client.get_inference_statistics()["model_stats"]}
    assert {"double", "upper", "gate"} <= names


def test_a_failure_is_counted(client: Client) -> None:
    def fails() -> int:
        [found] = client.get_inference_statistics("root")["model_stats"]
        return found["inference_stats"]["fail"]["count"]

    before = fails()
    with pytest.raises(InferenceServerException):
        client.infer("root", [tensor("input", numpy.array([-1.0]), "FP64")])
    assert fails() == before + 1


# ---- inference


@pytest.mark.parametrize("is_binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("is_binary_out", [True, False, None], ids=["binary", "JSON", "default"])
def test_numbers(client: Client, is_binary_in: bool, is_binary_out: bool | None) -> None:
    rows = numpy.arange(48, dtype=numpy.float32).reshape(3, 16) / 7
    outputs = None
    if is_binary_out is not None:
        outputs = [triton.InferRequestedOutput("y", binary_data=is_binary_out)]
    answer = client.infer(
        "double",
        [tensor("x", rows, "FP32", binary=is_binary_in)],
        outputs=outputs,
        request_id="mine",
    )
    numpy.testing.assert_array_equal(answer.as_numpy("y"), rows * 2)
    found = answer.get_response()
    assert (found["model_name"], found["model_version"], found["id"]) == ("double", "1", "mine")
    assert answer.get_output("y")["shape"] == [3, 16]
    assert answer.as_numpy("z") is None


def test_more_rows_than_a_batch_come_back_in_order(client: Client) -> None:
    rows = numpy.arange(200 * 16, dtype=numpy.float32).reshape(200, 16)
    answer = client.infer("double", [tensor("x", rows, "FP32")])
    numpy.testing.assert_array_equal(answer.as_numpy("y"), rows * 2)


def test_a_version_may_be_named(client: Client) -> None:
    answer = client.infer("double", [tensor("x", ROW, "FP32")], model_version="1")
    numpy.testing.assert_array_equal(answer.as_numpy("y"), ROW * 2)


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "JSON"])
def test_texts(client: Client, is_binary: bool) -> None:
    wanted = [triton.InferRequestedOutput("output", binary_data=is_binary)]
    given = texts("grüße", "", "a\nb", "x" * 10_000)
    answer = client.infer(
        "upper", [tensor("input", given, "BYTES", binary=is_binary)], outputs=wanted
    )
    rows = answer.as_numpy("output").ravel()
    found = [each if isinstance(each, str) else each.decode() for each in rows]
    assert found == ["GRÜSSE", "", "A\nB", "X" * 10_000]


def test_texts_in_the_shape_that_triton_users_send(client: Client) -> None:
    answer = client.infer("upper", [tensor("input", texts("a", "b").reshape(2, 1), "BYTES")])
    assert answer.as_numpy("output").ravel().tolist() == [b"A", b"B"]


def test_half_precision_travels_as_binary(client: Client) -> None:
    half = numpy.array([[1, 2.5, -4, 65504]], numpy.float16)
    answer = client.infer("half", [tensor("x", half, "FP16")])
    found = answer.as_numpy("y")
    assert found.dtype == numpy.float16
    numpy.testing.assert_array_equal(found, half / 2)


def test_half_precision_travels_as_json(client: Client, server: Server) -> None:
    half = numpy.array([[1, 2.5, -0.1, 65504]], numpy.float16)
    wanted = [triton.InferRequestedOutput("y", binary_data=False)]
    found = client.infer("half", [tensor("x", half, "FP16")], outputs=wanted).as_numpy("y")
    numpy.testing.assert_array_equal(found, half / 2)
    given = {"name": "x", "shape": [1, 4], "datatype": "FP16", "data": half.ravel().tolist()}
    answer = server.http.post("/v2/models/half/infer", json={"inputs": [given]}).json()
    assert answer["outputs"][0]["datatype"] == "FP16"
    assert answer["outputs"][0]["data"] == (half / 2).ravel().tolist()


def test_whole_numbers_keep_all_64_bits(client: Client) -> None:
    a = numpy.array([[2**62, -(2**62)]])
    b = numpy.array([[1, -1]])
    for binary in (True, False):
        answer = client.infer(
            "arithmetic",
            [tensor("a", a, "INT64", binary=binary), tensor("b", b, "INT64", binary=binary)],
        )
        assert answer.as_numpy("sum").tolist() == [[2**62 + 1, -(2**62) - 1]]
        assert answer.as_numpy("difference").tolist() == [[2**62 - 1, -(2**62) + 1]]


def test_only_the_outputs_asked_for_come_back_in_that_order(client: Client) -> None:
    inputs = [tensor(name, numpy.ones((1, 2), numpy.int64), "INT64") for name in "ba"]
    one = client.infer("arithmetic", inputs, outputs=[triton.InferRequestedOutput("difference")])
    assert [each["name"] for each in one.get_response()["outputs"]] == ["difference"]
    mixed = client.infer(
        "arithmetic",
        inputs,
        outputs=[
            triton.InferRequestedOutput("difference", binary_data=True),
            triton.InferRequestedOutput("sum", binary_data=False),
        ],
    )
    assert [each["name"] for each in mixed.get_response()["outputs"]] == ["difference", "sum"]
    assert mixed.as_numpy("sum").tolist() == [[2, 2]]
    assert mixed.as_numpy("difference").tolist() == [[0, 0]]


@pytest.mark.parametrize("there", [None, "gzip", "deflate"])
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
def test_compression_both_ways(client: Client, there: str | None, back: str | None) -> None:
    client.check_packs(there)
    rows = numpy.arange(64 * 16, dtype=numpy.float32).reshape(64, 16)
    answer = client.infer(
        "double",
        [tensor("x", rows, "FP32")],
        request_compression_algorithm=there,
        response_compression_algorithm=back,
    )
    numpy.testing.assert_array_equal(answer.as_numpy("y"), rows * 2)


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "JSON"])
def test_classification(client: Client, is_binary: bool) -> None:
    scores = numpy.zeros((2, 16), numpy.float32)
    scores[0, 3], scores[0, 5], scores[1, 9], scores[1, 1] = 2, 1, 0.5, 0.25
    wanted = [triton.InferRequestedOutput("y", binary_data=is_binary, class_count=2)]
    answer = client.infer("double", [tensor("x", scores, "FP32")], outputs=wanted)
    found = numpy.vectorize(lambda each: each if isinstance(each, str) else each.decode())(
        answer.as_numpy("y")
    )
    assert found.tolist() == [["4.000000:3", "2.000000:5"], ["1.000000:9", "0.500000:1"]]


def test_parameters_of_urgency_are_accepted(client: Client) -> None:
    answer = client.infer(
        "double",
        [tensor("x", ROW, "FP32")],
        priority=1,
        timeout=5_000_000,
        parameters={"tenant": "b"},
        headers={"Headway-Tenant": "a"},
    )
    numpy.testing.assert_array_equal(answer.as_numpy("y"), ROW * 2)


def test_nan_and_infinity_pass_as_binary(client: Client) -> None:
    row = ROW.copy()
    row[0, :3] = numpy.nan, numpy.inf, -numpy.inf
    answer = client.infer("double", [tensor("x", row, "FP32")])
    numpy.testing.assert_array_equal(answer.as_numpy("y"), row * 2)


def test_no_rows_are_refused(client: Client) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("double", [tensor("x", ROW[:0], "FP32")])
    assert "400" in str(caught.value.status())


def test_many_clients_at_once_each_get_their_own(server: Server) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(server.address, conn_limit=32) as client:

            async def ask(number: int) -> None:
                row = numpy.full((1, 16), number, numpy.float32)
                answer = await client.infer("double", [tensor("x", row, "FP32")])
                assert (answer.as_numpy("y") == 2 * number).all()

            await asyncio.gather(*map(ask, range(300)))

    asyncio.run(main())


def test_asynchronous_calls_of_the_gevent_client(server: Server) -> None:
    with triton.InferenceServerClient(server.address, concurrency=4) as client:
        calls = [
            client.async_infer("double", [tensor("x", ROW + number, "FP32")])
            for number in range(20)
        ]
        for number, call in enumerate(calls):
            numpy.testing.assert_array_equal(call.get_result().as_numpy("y"), (ROW + number) * 2)


# ---- shared memory


def test_tensors_in_system_shared_memory(client: Client) -> None:
    """The region is Python's own: tritonclient's module for it needs pkg_resources, which is gone
    from today's setuptools."""
    if "system_shared_memory" not in client.get_server_metadata()["extensions"]:
        with pytest.raises(InferenceServerException, match="shared memory is off"):
            client.register_system_shared_memory("r", "/absent", 4)
        assert client.get_system_shared_memory_status() == []
        return
    half = ROW.nbytes
    region = SharedMemory(f"test-{uuid4().hex}", create=True, size=2 * half)
    try:
        region.buf[:half] = ROW.tobytes()
        client.register_system_shared_memory("region", f"/{region.name}", 2 * half)
        [listed] = client.get_system_shared_memory_status("region")
        assert (listed["key"], listed["byte_size"]) == (f"/{region.name}", 2 * half)
        given = triton.InferInput("x", [1, 16], "FP32")
        given.set_shared_memory("region", half)
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("region", half, offset=half)
        answer = client.infer("double", [given], outputs=[wanted])
        assert answer.get_output("y")["shape"] == [1, 16]
        found = numpy.frombuffer(bytes(region.buf[half : 2 * half]), numpy.float32)
        numpy.testing.assert_array_equal(found, ROW[0] * 2)
        wanted.set_shared_memory("region", half, offset=half + 1)
        with pytest.raises(InferenceServerException, match="are asked for"):
            client.infer("double", [given], outputs=[wanted])
        client.unregister_system_shared_memory("region")
        assert client.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match="not registered"):
            client.infer("double", [given])
    finally:
        client.unregister_system_shared_memory()
        region.close()
        region.unlink()


def test_a_region_that_is_not_there_is_told(client: Client) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.register_system_shared_memory("r", "/../etc/passwd", 4)
    assert str(caught.value.status()) in ("400", "403")
    assert client.get_system_shared_memory_status() == []


def test_cuda_shared_memory_is_refused_in_words(client: Client) -> None:
    assert client.get_cuda_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="not supported"):
        client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 4)


# ---- errors


@pytest.mark.parametrize(
    ("model", "version", "inputs", "status", "part"),
    [
        ("nothing", "", [("x", ROW, "FP32")], 404, "no model 'nothing'"),
        ("double", "7", [("x", ROW, "FP32")], 404, "version 7"),
        ("double", "", [("x", ROW[:, :15], "FP32")], 400, "input 'x': shape"),
        ("double", "", [("x", ROW.astype("float64"), "FP64")], 400, "takes FP32, not FP64"),
        ("double", "", [("z", ROW, "FP32")], 400, "input 'x' is missing"),
        ("double", "", [("x", ROW, "FP32"), ("z", ROW, "FP32")], 400, "input 'z' is unknown"),
        ("double", "", [("x", ROW[0], "FP32")], 400, "input 'x': shape"),
        ("letters", "", [("input", texts("a"), "BYTES")], 400, "only streams"),
        ("root", "", [("input", numpy.array([-1.0]), "FP64")], 500, "root"),
    ],
    ids=[
        *("model", "version", "shape", "dtype", "name", "one too many", "rank", "stream", "raises"),
    ],
)
def test_an_error_is_told(
    client: Client, model: str, version: str, inputs: list[Any], status: int, part: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [tensor(*each) for each in inputs], model_version=version)
    assert str(status) in str(caught.value.status())
    assert part in caught.value.message()
    assert "Traceback" not in caught.value.message()


def test_an_unknown_output_is_told_before_the_model_runs(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="'z'") as caught:
        client.infer(
            "double",
            [tensor("x", ROW, "FP32")],
            outputs=[triton.InferRequestedOutput("z")],
        )
    assert "400" in str(caught.value.status())


@pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config"])
def test_an_unknown_model_has_no_description(client: Client, method: str) -> None:
    with pytest.raises(InferenceServerException, match="no model 'nothing'") as caught:
        getattr(client, method)("nothing")
    assert "404" in str(caught.value.status())


def test_errors_are_readable_when_compression_was_asked_for(client: Client) -> None:
    client.check_packs("gzip")
    with pytest.raises(InferenceServerException, match="no model 'nothing'"):
        client.infer(
            "nothing",
            [tensor("x", ROW, "FP32")],
            request_compression_algorithm="gzip",
            response_compression_algorithm="gzip",
        )


def test_one_callers_mistake_is_not_its_neighbours(server: Server) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(server.address) as client:

            async def ask(number: float) -> Any:
                given = tensor("input", numpy.array([number]), "FP64")
                return (await client.infer("root", [given])).as_numpy("output").tolist()

            numbers = [float(each) if each != 25 else -1.0 for each in range(1, 51)]
            answers = await asyncio.gather(*map(ask, numbers), return_exceptions=True)
            for number, answer in zip(numbers, answers, strict=True):
                if number < 0:
                    assert isinstance(answer, InferenceServerException)
                else:
                    assert answer == [[number**0.5]]

    asyncio.run(main())


def test_a_timeout_is_a_504(client: Client, server: Server) -> None:
    given = [tensor("input", numpy.array([2.0]), "FP64")]
    with ThreadPoolExecutor() as pool, server.closed_gate() as wait_entered:
        first = pool.submit(server.http.post, "/v1/predict/gate", json=1.0)
        wait_entered()
        with pytest.raises(InferenceServerException) as caught:
            client.infer("gate", given, timeout=20_000)
        assert "504" in str(caught.value.status())
        server.keeper("open")
        assert first.result().json() == 1.0


def test_a_full_queue_is_a_503(server: Server) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(server.address) as client:

            async def ask(number: float) -> Any:
                given = tensor("input", numpy.array([number]), "FP64")
                return (await client.infer("gate", [given])).as_numpy("output").tolist()

            tasks = [asyncio.create_task(ask(float(number))) for number in range(1, 6)]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                assert isinstance(error, InferenceServerException)
                assert "503" in str(error.status())
            server.keeper("open")
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            good = [each for each in answers if isinstance(each, list)]
            assert good
            for number, answer in enumerate(answers, 1):
                assert not isinstance(answer, list) or answer == [[float(number)]]

    with server.closed_gate():
        asyncio.run(main())


# ---- the real model


def test_minilm_over_v2(minilm: Server) -> None:
    with triton.InferenceServerClient(minilm.address) as client:
        given = texts("a cat sits", "a kitten sat", "quarterly tax report")
        vectors = client.infer("minilm", [tensor("text", given, "BYTES")]).as_numpy("embedding")
    assert vectors.shape == (3, 384)
    assert vectors.dtype == numpy.float32
    numpy.testing.assert_allclose(numpy.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    similar = vectors @ vectors.T
    assert similar[0, 1] > 0.5 > 0.3 > similar[0, 2]
