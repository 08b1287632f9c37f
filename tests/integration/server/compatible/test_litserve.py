"""Habits of LitServe's users: settings, batches, contexts and HTTPException, as they have them."""

import asyncio
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from small_server import hosted, serving

import headway
from headway import Batcher, ConfigError
from headway.compat import litserve as ls
from headway.config import ServerConfig
from headway.server.grpc import inference_pb2 as pb
from headway.server.run import make_grpc
from headway.signature import signature_of

pytestmark = pytest.mark.real_time


class Lengths(ls.LitAPI):
    """`predict` over a batch, without `batch` and `unbatch`."""

    def setup(self, device: str) -> None:
        self.seen: list[Any] = []

    def decode_request(self, request: Any) -> Any:
        return request["text"]

    def predict(self, texts: Any) -> Any:
        self.seen.append(texts)
        return [len(text) for text in texts]

    def encode_response(self, output: Any) -> Any:
        return {"length": output}


class HTTPException(Exception):
    """As Starlette's: tests need none of it."""

    def __init__(self, status_code: int, detail: Any = None, headers: Any = None) -> None:
        self.status_code, self.detail, self.headers = status_code, detail, headers


# ---- batches


@pytest.mark.parametrize("says", ["server", "api", "class"])
async def test_with_max_batch_size_predict_takes_a_batch(says: str) -> None:
    class Eight(Lengths):
        max_batch_size = 8

    api = {"server": Lengths, "api": lambda: Lengths(max_batch_size=8), "class": Eight}[says]()
    if says == "server":
        ls.LitServer(api, accelerator="auto", max_batch_size=8, batch_timeout=0.01)
    async with serving(model=api) as http:
        answer = await http.post("/predict", json={"text": "four"})
        assert answer.json() == {"length": 4}
        config = (await http.get("/v2/models/model/config")).json()
    assert api.seen == [["four"]]
    assert config["max_batch_size"] == 8


@pytest.mark.parametrize("kind", ["numpy", "torch"])
async def test_arrays_are_stacked_and_other_inputs_stay_a_list(kind: str) -> None:
    module: Any = pytest.importorskip(kind)

    class Sums(ls.LitAPI):
        def decode_request(self, request: Any) -> Any:
            return request if isinstance(request, str) else module.asarray(request)

        def predict(self, x: Any) -> Any:
            return x if isinstance(x, list) else x.sum(-1)

        def encode_response(self, output: Any) -> Any:
            return output if isinstance(output, str) else float(output)

    async with Batcher(Sums(max_batch_size=8), max_batch_size=8) as batcher:
        assert await batcher.many([[1.0, 2.0], [3.0, 4.0]]) == [3.0, 7.0]
        assert await batcher.many([[1.0, 2.0], [3.0]]) == [3.0, 3.0]  # of two shapes
        assert await batcher.submit("text") == "text"


async def test_a_text_is_no_list_of_results() -> None:
    class Wrong(ls.LitAPI):
        def predict(self, texts: Any) -> Any:
            return "ab"

    async with serving(model=Wrong(max_batch_size=2)) as http:
        answer = await http.post("/predict", json="x")
    assert answer.status_code == 500
    assert "returned str" in answer.json()["error"]


async def test_a_batch_may_be_answered_by_a_generator_expression() -> None:
    class Upper(ls.LitAPI):
        def predict(self, texts: Any) -> Any:
            return (text.upper() for text in texts)

    async with Batcher(Upper(max_batch_size=2), max_batch_size=2) as batcher:
        assert await batcher.many(["ab", "cd"]) == ["AB", "CD"]


async def test_a_generator_over_a_batch_streams_a_step_for_all() -> None:
    class Words(ls.LitAPI):
        def predict(self, texts: Any) -> Any:
            for word in ("one", "two"):
                yield [f"{text} {word}" for text in texts]

        def encode_response(self, steps: Any) -> Any:
            for step in steps:
                yield [{"output": each} for each in step]

    async with Batcher(Words(max_batch_size=4, stream=True), max_batch_size=4) as batcher:
        streams = [batcher.stream(text) for text in ("a", "b")]
        found = await asyncio.gather(*(_all_of(stream) for stream in streams))
    assert found == [[{"output": f"{text} one"}, {"output": f"{text} two"}] for text in ("a", "b")]


async def _all_of(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


# ---- classes


async def test_methods_of_a_parent_class_are_called_by_super() -> None:
    class Base(ls.LitAPI):
        def setup(self, device: str) -> None:
            super().setup(device)
            self.devices = [device]

        def predict(self, x: Any) -> Any:
            return x + 1

    class Middle(Base):
        pass

    class Child(Middle):
        def setup(self, device: str) -> None:
            super().setup(device)
            self.devices.append(f"{device} again")

        def predict(self, x: Any) -> Any:
            return [super().predict(x), *self.devices]

    async with Batcher(Child()) as batcher:
        assert await batcher.submit(1) == [2, "cpu", "cpu again"]
    async with Batcher(Middle()) as batcher:
        assert await batcher.submit(1) == 2


async def test_a_generator_of_a_parent_class_is_called_by_super() -> None:
    class Words(ls.LitAPI):
        def predict(self, text: Any) -> Any:
            yield from text.split()

    class Loud(Words):
        def predict(self, text: Any) -> Any:
            for word in super().predict(text):
                yield word.upper()

    async with Batcher(Loud()) as batcher:
        assert await _all_of(batcher.stream("a b")) == ["A", "B"]


async def test_methods_may_come_from_a_mixin() -> None:
    class Adding:
        def setup(self, device: str) -> None:
            self.bonus = 10

        def predict(self, x: Any, context: Any) -> Any:
            return x + self.bonus + len(context)  # type: ignore[attr-defined]

    class API(Adding, ls.LitAPI):  # type: ignore[misc]
        pass

    async with Batcher(API()) as batcher:
        assert await batcher.submit(1) == 11


async def test_a_class_may_be_made_again_by_a_decorator() -> None:
    @dataclass(slots=True)
    class Adding(ls.LitAPI):
        bonus: int = 10

        def predict(self, x: Any) -> Any:
            return x + self.bonus

    class Child(Adding):
        def predict(self, x: Any) -> Any:
            return [Adding.__name__, super().predict(x)]

    async with Batcher(Child()) as batcher:
        assert await batcher.submit(1) == ["Adding", 11]


async def test_a_class_without_predict_is_refused_by_its_name() -> None:
    class Empty(ls.LitAPI):
        pass

    with pytest.raises(ConfigError, match=r"Empty does not define predict\(\)"):
        async with serving(model=Empty()):
            pass


# ---- settings


def test_an_api_takes_its_settings() -> None:
    api = Lengths(
        max_batch_size=8, batch_timeout=0.01, stream=False, api_path="/predict", enable_async=False
    )
    assert api.max_batch_size == 8
    assert Lengths(loop="auto", spec=None, mcp=None).max_batch_size == 1


@pytest.mark.parametrize(
    "wrong",
    [
        *({"api_path": "/classify"}, {"spec": object()}, {"enable_async": True}, {"mcp": 1}),
        *({"stream": True}, {"max_batch_size": 0}, {"max_batch_sise": 8}),
    ],
)
def test_a_setting_of_an_api_that_cannot_be_obeyed_is_refused_by_its_name(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}: "):
        Lengths(**wrong)


async def test_a_class_may_have_its_own_constructor() -> None:
    class Own(Lengths):
        def __init__(self, bonus: int) -> None:
            self.bonus = bonus

        def encode_response(self, output: Any) -> Any:
            return output + self.bonus

    api = Own(bonus=10)
    ls.LitServer(api, max_batch_size=2)
    async with serving(model=api) as http:
        assert (await http.post("/predict", json={"text": "ab"})).json() == 12


def test_an_async_method_is_refused_by_its_name() -> None:
    class Own(ls.LitAPI):
        def __init__(self) -> None:
            pass

        async def predict(self, x: Any) -> Any:
            return x

    with pytest.raises(ConfigError, match=r"predict of Own is `async def`.*Write `def predict`"):
        Own()


def test_options_that_change_nothing_are_accepted_and_others_refused() -> None:
    api = Lengths()
    ls.LitServer(
        lit_api=api,
        devices=1,
        workers_per_device=1,
        api_path="/predict",
        max_batch_size=None,
        stream=None,
    )
    ls.LitServer(api, devices="auto", healthcheck_path="/health", loop="auto")
    for wrong in ({"devices": 2}, {"workers_per_device": 2}, {"api_path": "/x"}, {"stream": True}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ls.LitServer(api, **wrong)
    with pytest.raises(ConfigError, match="lit_api"):
        ls.LitServer([api])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        *("authorize", "format_encoded_response", "has_active_requests", "has_capacity"),
        *("health", "pre_setup", "set_logger_queue"),
    ],
)
def test_a_method_that_litserve_would_call_and_nothing_here_is_refused_by_its_name(
    name: str,
) -> None:
    def method(self: Any, *arguments: Any) -> Any: ...

    with pytest.raises(ConfigError, match=f"^{name}: "):
        type("Own", (Lengths,), {name: method})()


async def test_what_a_constructor_sets_is_refused_before_the_model_is_ready() -> None:
    class Own(Lengths):
        def __init__(self) -> None:
            self.authorize = lambda key: None

    with pytest.raises(ConfigError, match=r"^authorize: .*--keys-file"):
        ls.LitServer(Own())
    with pytest.raises(ConfigError, match=r"^authorize: "):
        async with Batcher(Own()):
            pass


def test_a_key_in_the_environment_is_refused_and_not_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LIT_SERVER_API_KEY", "secret")
    with pytest.raises(ConfigError, match=r"^LIT_SERVER_API_KEY: .*HEADWAY_KEYS_FILE") as caught:
        Lengths()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"api_path": "/classify"}, {"spec": object()}, {"loop": "x"}, {"stream": True}]
)
def test_a_setting_may_stand_in_the_class_and_is_refused_there(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}: "):
        type("Own", (Lengths,), wrong)()


def test_an_api_that_yields_is_not_told_to_answer_at_once() -> None:
    class Own(ls.LitAPI):
        def predict(self, x: Any) -> Any:
            yield x

    assert Own(stream=True)
    with pytest.raises(ConfigError, match=r"^stream: "):
        ls.LitServer(Own(), stream=False)


# Every option of LitServe 0.2.19, with a value that asks for something.
_SERVER_OPTIONS: dict[str, Any] = {
    **{"devices": 2, "workers_per_device": 2, "healthcheck_path": "/alive", "info_path": "/about"},
    **{"shutdown_path": "/stop", "enable_shutdown_api": True, "model_metadata": {"a": 1}},
    **{"spec": object(), "max_payload_size": 10, "callbacks": [1], "middlewares": [1]},
    **{"loggers": [1], "disable_openapi_url": True, "stream": True, "api_path": "/x"},
    **{"loop": object(), "accelerator": "tpu", "max_batch_size": 0},
    **{"ssl_keyfile": "key.pem"},  # of uvicorn, through `run`
}


@pytest.mark.parametrize("name", sorted(_SERVER_OPTIONS))
def test_an_option_that_would_change_what_is_served_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        ls.LitServer(Lengths(), **{name: _SERVER_OPTIONS[name]})


def test_options_that_ask_for_what_is_served_anyway_are_taken() -> None:
    ls.LitServer(
        Lengths(), info_path="/info", shutdown_path="/shutdown", restart_workers=True, loop="auto"
    )
    Lengths().log("a", 1)


# ---- contexts


class Translated(ls.LitAPI):
    def decode_request(self, request: Any, context: Any) -> Any:
        context["language"] = request["language"]
        return request["text"]

    def predict(self, text: Any, context: Any) -> Any:
        context["length"] = len(text)
        return text.upper()

    def encode_response(self, output: Any, *, context: Any) -> Any:
        return [output, context["language"], context["length"]]


class TranslatedTogether(Translated):
    def predict(self, texts: Any, context: Any) -> Any:
        for text, each in zip(texts, context, strict=True):
            each["length"] = len(text)
        return [text.upper() for text in texts]


@pytest.mark.parametrize("worker", ["thread", "process"])
@pytest.mark.parametrize("kind", [Translated, TranslatedTogether])
async def test_each_request_has_a_context_of_its_own(kind: Any, worker: str) -> None:
    api = kind(max_batch_size=1 if kind is Translated else 4)
    requests = [{"text": "a" * n, "language": f"l{n}"} for n in (1, 2, 3)]
    async with serving(model=(api, {"worker": worker})) as http:
        answers = await asyncio.gather(*(http.post("/predict", json=each) for each in requests))
    assert [each.json() for each in answers] == [["A" * n, f"l{n}", n] for n in (1, 2, 3)]


async def test_what_unbatch_gives_may_be_a_tuple() -> None:
    class Tuples(TranslatedTogether):
        def unbatch(self, output: Any) -> Any:
            return tuple(output)

    async with serving(model=Tuples(max_batch_size=2)) as http:
        answer = await http.post("/predict", json={"text": "a", "language": "en"})
    assert answer.json() == ["A", "en", 1]


async def test_a_class_may_stream_what_its_parent_answers_at_once() -> None:
    class Streaming(Lengths):
        def predict(self, text: Any) -> Any:
            yield from text

        def encode_response(self, outputs: Any) -> Any:
            yield from outputs

    class AtOnce(Streaming):
        def predict(self, text: Any) -> Any:
            return text

        def encode_response(self, output: Any) -> Any:
            return output

    async with serving(streaming=Streaming(), once=AtOnce()) as http:
        answer = await http.post("/v1/predict/streaming", json={"text": "ab"})
        assert answer.text == 'data: "a"\n\ndata: "b"\n\n'
        assert (await http.post("/v1/predict/once", json={"text": "ab"})).json() == "ab"


async def test_a_method_may_be_the_only_one_with_a_context() -> None:
    class Only(ls.LitAPI):
        def predict(self, x: Any, context: Any) -> Any:
            return [x, context]

    async with serving(model=Only()) as http:
        assert (await http.post("/predict", json=5)).json() == [5, {}]


async def test_a_generator_takes_a_context() -> None:
    class Words(ls.LitAPI):
        def decode_request(self, request: Any, context: Any) -> Any:
            context["sign"] = "!"
            return request

        def predict(self, text: Any, context: Any) -> Any:
            for word in text.split():
                yield word + context["sign"]

        def encode_response(self, words: Any, context: Any) -> Any:
            for word in words:
                yield word + context["sign"]

    async with Batcher(Words()) as batcher:
        assert await _all_of(batcher.stream("a b")) == ["a!!", "b!!"]


# ---- errors


class Refusing(ls.LitAPI):
    def decode_request(self, request: Any) -> Any:
        if request["at"] == "decode_request":
            raise HTTPException(request["status"], "no such text")
        return request

    def predict(self, request: Any) -> Any:
        for each in request if isinstance(request, list) else [request]:
            if each["at"] == "predict":
                raise HTTPException(each["status"], {"field": "text"})
        return request


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("status", "answered"),
    [(400, 400), (401, 401), (403, 403), (404, 404), (418, 400), (422, 422), (429, 429)],
)
async def test_an_http_exception_is_its_callers_error(
    rows: int, status: int, answered: int
) -> None:
    places = ("decode_request", "predict", "nowhere")
    async with serving(model=Refusing(max_batch_size=rows)) as http:
        decoded, predicted, fine = await asyncio.gather(
            *(http.post("/predict", json={"at": place, "status": status}) for place in places)
        )
    assert [each.status_code for each in (decoded, predicted, fine)] == [answered, answered, 200]
    assert decoded.json()["error"] == "no such text"
    assert predicted.json()["error"] == '{"field": "text"}'


async def test_an_http_exception_of_another_class_is_the_models_failure() -> None:
    async with serving(model=Refusing()) as http:
        answer = await http.post("/predict", json={"at": "predict", "status": 503})
    assert answer.status_code == 500


@pytest.mark.parametrize("place", ["unbatch", "lazily", "one"])
async def test_an_http_exception_is_known_wherever_it_is_raised(place: str) -> None:
    class Late(ls.LitAPI):
        def predict(self, xs: Any) -> Any:
            if place == "one":
                raise HTTPException(HTTPStatus.NOT_FOUND, "not here")
            return xs

        def unbatch(self, output: Any) -> Any:
            if place == "lazily":
                return map(self.refuse, output)
            return self.refuse(output)

        def refuse(self, output: Any) -> Any:
            raise HTTPException(HTTPStatus.NOT_FOUND, "not here")

    async with serving(model=Late(max_batch_size=1 if place == "one" else 2)) as http:
        answer = await http.post("/predict", json=1)
    assert (answer.status_code, answer.json()["error"]) == (404, "not here")


async def test_an_exception_with_a_status_alone_is_the_models_failure() -> None:
    class HTTPStatusError(Exception):
        status_code = 404  # of a server that the model has asked

    class Asking(ls.LitAPI):
        def predict(self, x: Any) -> Any:
            raise HTTPStatusError("the other server says 404")

    async with serving(model=Asking()) as http:
        answer = await http.post("/predict", json=1)
    assert answer.status_code == 500
    assert "the other server says 404" in answer.json()["error"]


async def test_when_to_come_back_is_passed_on_and_other_headers_are_not() -> None:
    class Limited(ls.LitAPI):
        def predict(self, status: Any) -> Any:
            headers = {"retry-after": "60", "X-Other": "1", "WWW-Authenticate": "Basic"}
            raise HTTPException(status, "no", headers)

    async with serving(model=Limited()) as http:
        later, unknown = [await http.post("/predict", json=status) for status in (429, 401)]
    assert (later.status_code, later.headers["retry-after"]) == (429, "60")
    assert "x-other" not in later.headers
    assert unknown.status_code == 401
    assert "www-authenticate" not in unknown.headers


@pytest.mark.parametrize("after", ["soon", "-1", "nan", "inf", None, 5])
async def test_what_says_no_seconds_is_no_time_to_come_back(after: Any) -> None:
    class Limited(ls.LitAPI):
        def predict(self, x: Any) -> Any:
            raise HTTPException(429, "no", {"Retry-After": after})

    async with serving(model=Limited()) as http:
        answer = await http.post("/predict", json=1)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5" if after == 5 else "1")


async def test_a_request_that_may_be_tried_later_leaves_its_neighbours_alone() -> None:
    class Busy(ls.LitAPI):
        def setup(self, device: str) -> None:
            self.seen: list[Any] = []

        def predict(self, x: Any) -> Any:
            self.seen.append(x)
            if x == 0:
                raise headway.Unavailable("busy", retry_after_s=7)
            return x

    api = Busy()
    async with Batcher(api, max_batch_size=3) as batcher:
        found = await asyncio.gather(*map(batcher.submit, range(3)), return_exceptions=True)
    assert [type(found[0]), *found[1:]] == [headway.Unavailable, 1, 2]
    assert api.seen == [0, 1, 2]  # none was run again


async def test_a_refusal_crosses_processes_and_grpc() -> None:
    settings = {"worker": "process"}
    config = ServerConfig(port=0, grpc_port=0)
    async with hosted({"model": (RefusingText(), settings)}) as registry:
        server = make_grpc(registry, config)
        assert server is not None
        async with server, grpc.aio.insecure_channel(server.address) as channel:
            infer: Any = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
            request = pb.ModelInferRequest(model_name="model")
            request.inputs.add(name="input", datatype="BYTES", shape=[1])
            request.inputs[0].contents.bytes_contents.append(b"x")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await infer(request)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "no such text"


async def test_a_refusal_crosses_processes_with_its_fields() -> None:
    async with serving(model=(RefusingText(), {"worker": "process"})) as http:
        missing, later = [await http.post("/predict", json=text) for text in ("x", "later")]
    assert (missing.status_code, missing.json()["error"]) == (404, "no such text")
    assert (later.status_code, later.headers["retry-after"]) == (429, "60")


class RefusingText(ls.LitAPI):
    def decode_request(self, request: str) -> Any:
        return request

    def predict(self, text: Any) -> Any:
        if text == "later":
            raise HTTPException(429, "later", {"Retry-After": "60"})
        raise HTTPException(404, "no such text")


async def test_a_stream_that_is_refused_leaves_its_neighbours_chunks() -> None:
    begun = []

    class Words(ls.LitAPI):
        def predict(self, text: Any) -> Any:
            begun.append(text)
            yield f"{text} one"
            if text == "bad":
                raise HTTPException(404, "no more")
            yield f"{text} two"
            yield f"{text} three"

    async with Batcher(Words(), max_batch_size=2) as batcher:
        streams = [batcher.stream(text) for text in ("bad", "good")]
        found = await asyncio.gather(*map(_until_error, streams))
    assert found == [
        (["bad one"], "NotFound: no more"),
        (["good one", "good two", "good three"], ""),
    ]
    assert begun == ["bad", "good"]  # neither was run again


async def _until_error(stream: Any) -> tuple[list[Any], str]:
    chunks = []
    try:
        async for chunk in stream:
            chunks.append(chunk)
    except headway.HeadwayError as error:
        return chunks, f"{type(error).__name__}: {error}"
    return chunks, ""


async def test_errors_name_the_methods_that_their_author_wrote() -> None:
    class Broken(Lengths):
        def encode_response(self, output: Any) -> Any:
            raise ValueError("no")

    async with serving(model=Broken(max_batch_size=2)) as http:
        decoded = await http.post("/predict", json={"input": "x"})
        encoded = await http.post("/predict", json={"text": "x"})
    assert decoded.json()["error"] == "decode_request raised KeyError: 'text'"
    assert encoded.json()["error"] == "encode_response raised ValueError: no"


# ---- run


RUN = """
import headway.compat.litserve as ls

class Lengths(ls.LitAPI):
    def setup(self, device):
        pass

    def predict(self, texts):
        return [len(text) for text in texts]

if __name__ == "__main__":
    ls.LitServer(Lengths(), max_batch_size=8, batch_timeout=0.01).run(port=PORT)
"""


SERVE = "-m headway serve app.py:Lengths --port 0 --grpc-port -1 "
COMMANDS = [
    "app.py",
    SERVE + "--options max_batch_size=8",
    SERVE + "--max-batch-size 8",
    SERVE + "--max-batch-size 8 --worker process",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_run_opens_one_port_and_hands_over_batches(tmp_path: Path, command: str) -> None:
    """So does the command, with the batch size as a flag or as the API's own option."""
    (tmp_path / "app.py").write_text(RUN.replace("PORT", "0"))
    with subprocess.Popen(
        [sys.executable, *command.split()], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            told = ""
            for line in process.stderr:
                told += line
                if re.search(r"http://\S+", line):
                    break
            [url] = re.findall(r"http://\S+", told)
            assert httpx.post(f"{url}/predict", json="four").json() == 4
        finally:
            process.terminate()
        told += process.stderr.read()
    assert "grpc" not in told.lower()


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(RUN.replace("PORT", str(port)))
        done = subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"headway: cannot listen on 127.0.0.1:{port}: ")
    assert last.endswith("; port=… chooses another port")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ls.LitServer(Lengths(), callbacks=[1])", "callbacks: this LitServe option is not supp"),
        ("ls.LitServer(Lengths(), spec=ls.OpenAISpec())", "OpenAISpec: headway.compat.litserve d"),
        ("from headway.compat.litserve import OpenAISpec", "OpenAISpec: headway.compat.litserve "),
        ("ls.LitServer(Lengths()).run(ssl_keyfile='k')", "ssl_keyfile: this LitServe option is n"),
        ("main()", "devices: this LitServe option is not supported"),
    ],
)
def test_a_mistake_in_a_program_is_told_in_one_line(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "app.py"
    main = "\ndef main():\n    ls.LitServer(Lengths(), devices=2)\n\n"
    file.write_text(f"{RUN.partition('if __name__')[0]}{main}{line}\n")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"headway: {says}")


@pytest.mark.parametrize("name", ["OpenAISpec", "OpenAIEmbeddingSpec", "Callback", "Logger"])
def test_a_name_that_is_not_here_says_what_takes_its_place(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: headway.compat.litserve does not have it; "):
        getattr(ls, name)


def test_other_names_are_missing_as_in_any_module() -> None:
    assert not hasattr(ls, "Nonsense")


def test_a_static_decode_request_says_what_callers_may_send() -> None:
    class Scaled(ls.LitAPI):
        def setup(self, device: str) -> None: ...

        @staticmethod
        def decode_request(request: dict, scale: float = 1.0) -> float:  # type: ignore[type-arg]
            return float(request["x"] * scale)

        def predict(self, x: float) -> float:
            return x

    assert signature_of(Scaled()).input_hint is dict


def test_no_timeout_is_no_limit() -> None:
    assert "timeout_ms" not in ls.LitServer(Lengths(), timeout=None)._settings
