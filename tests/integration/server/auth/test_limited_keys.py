"""A key that is for one model, at every door: another model looks like one that does not exist."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest
from served_models import Letters, Upper
from small_server import hosted

from headway.config import KeyConfig, ServerConfig
from headway.server.app import App
from headway.server.auth.guard import Guard
from headway.server.auth.keys import new_key
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.calls import SERVICE
from headway.server.grpc.server import GrpcServer
from headway.server.observing import Observing
from headway.server.run import make_app
from headway.server.service.inference import inference_over
from headway.server.service.routes import Route
from headway.server.service.shared_memory import SharedRegions
from headway.wire.asgi import AsgiApp
from headway.wire.http1.server import HttpServer

pytestmark = pytest.mark.real_time
KEY, WHOLE = new_key(), new_key()
RIGHTS = ("infer", "metrics", "admin")
KEYS = [
    KeyConfig(id="m", hash=KEY.hash, tenant="m", models=("mine",), rights=RIGHTS),
    KeyConfig(id="w", hash=WHOLE.hash, tenant="w", rights=RIGHTS),
]
BODIES = [
    *(b"", b"{}", b'"a"', b'{"model":"NAME"}', b'{"model":"NAME","input":"a"}'),
    *(b'{"model":"NAME","prompt":"a"}', b'{"model":"NAME","tokens":[1]}'),
    b'{"model":"NAME","messages":[{"role":"user","content":"a"}]}',
    b'{"model":"NAME","query":"a","documents":["b"]}',
    b'{"model":"NAME","texts":["a"],"input_type":"search_query"}',
    b'{"lora_name":"NAME","lora_path":"/x"}',
    b'{"lora_name":"x","lora_path":"/x","model":"NAME"}',
    *(b'{"inputs":"a"}', b'{"text_input":"a"}', b'{"instances":["a"]}', b'{"folder":"/x"}'),
]


@asynccontextmanager
async def served(stack: str) -> AsyncIterator[tuple[App, Any]]:
    """A client of `mine` and `secret`: of HTTP or ASGI, or a channel of gRPC."""
    config = ServerConfig(port=0, grpc_port=0, drain_s=0.2)
    guard, observing = Guard(config, KEYS), Observing(config)
    models = {"mine": Upper(), "secret": Letters()}
    async with AsyncExitStack() as opened:
        registry = await opened.enter_async_context(hosted(models, observing.watch))
        observing.follow(registry)
        inference = inference_over(registry, config, version="0", regions=SharedRegions())
        app = make_app(inference, config, guard=guard, observing=observing)
        client: Any
        if stack == "http":
            http = await opened.enter_async_context(HttpServer(app, config))
            client = httpx.AsyncClient(base_url=http.url, timeout=20)
        elif stack == "asgi":
            transport = httpx.ASGITransport(app=AsgiApp(app))  # type: ignore[arg-type]
            client = httpx.AsyncClient(transport=transport, base_url="http://asgi", timeout=20)
        else:
            server = await opened.enter_async_context(GrpcServer(inference, config, guard=guard))
            client = grpc.aio.insecure_channel(server.address)
        yield app, await opened.enter_async_context(client)


async def ask(client: httpx.AsyncClient, route: Route, body: bytes, name: str) -> tuple[int, str]:
    path = route.template.replace("{model}", name).replace("{version}", "1")
    path = re.sub(r"\{\w+\}", "x", path)
    headers = {"x-api-key": KEY.key, "x-request-id": "r"}
    content = body.replace(b"NAME", name.encode())
    answer = await client.request(route.method, path, content=content, headers=headers)
    return answer.status_code, answer.text


@pytest.mark.parametrize("stack", ["http", "asgi"])
async def test_no_route_tells_another_model_from_none(stack: str) -> None:
    async with served(stack) as (app, client):
        for route in app.routes:
            for body in BODIES if route.method == "POST" else [b""]:
                about = (route.method, route.template, body)
                secret, text = await ask(client, route, body, "secret")
                absent, same = await ask(client, route, body, "absent")
                if "{model}" in route.template or b"NAME" in body:
                    assert (secret, text.replace("secret", "absent")) == (absent, same), about
                    assert secret >= 400 or "{model}" not in route.template, about
                else:
                    assert "secret" not in text, about


@pytest.mark.parametrize("stack", ["http", "asgi"])
async def test_metrics_show_a_key_its_own_models(stack: str) -> None:
    async with served(stack) as (_, client):
        for key, models in ((KEY, {"mine"}), (WHOLE, {"mine", "secret"})):
            page = (await client.get("/metrics", headers={"x-api-key": key.key})).text
            assert set(re.findall(r'model="(\w+)"', page)) == models
            assert "headway_model_ready" in page
            assert "headway_build_info" in page  # what concerns no model is for every such key


@pytest.mark.parametrize("stack", ["http", "asgi"])
async def test_who_administrates_one_model_does_not_administrate_the_server(stack: str) -> None:
    region = "/v2/systemsharedmemory/region/r"
    whole = [
        *(("GET", "/admin/drain"), ("POST", "/admin/drain"), ("POST", f"{region}/register")),
        *(("POST", f"{region}/unregister"), ("POST", "/v2/systemsharedmemory/unregister")),
        *(("GET", "/v2/systemsharedmemory/status"), ("GET", f"{region}/status")),
    ]
    async with served(stack) as (_, client):
        for method, path in whole:
            refused = await client.request(
                method, path, headers={"x-api-key": KEY.key}, content=b""
            )
            assert refused.status_code == 403, path
            assert "'m' is for certain models" in refused.text, path
        allowed = await client.get("/admin/drain", headers={"x-api-key": WHOLE.key})
        assert allowed.json() == {"draining": False}
        path = "/v2/systemsharedmemory/unregister"
        assert (await client.post(path, headers={"x-api-key": WHOLE.key})).status_code == 200


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("stack", ["http", "asgi"])
async def test_a_key_of_one_model_names_no_region(stack: str, side: str) -> None:
    """Not even to learn which there are."""
    where = {"shared_memory_region": "absent", "shared_memory_byte_size": 4}
    given: dict[str, Any] = {"name": "input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
    body: dict[str, Any] = {"inputs": [given], "outputs": []}
    if side == "inputs":
        del given["data"]
        given["parameters"] = where
    else:
        body["outputs"] = [{"name": "output", "parameters": where}]
    async with served(stack) as (_, client):
        path = "/v2/models/mine/infer"
        refused = await client.post(path, headers={"x-api-key": KEY.key}, json=body)
        assert (refused.status_code, "certain models" in refused.text) == (403, True)
        allowed = await client.post(path, headers={"x-api-key": WHOLE.key}, json=body)
        assert (allowed.status_code, "not registered" in allowed.text) == (400, True)


@pytest.mark.parametrize("side", ["inputs", "outputs"])
async def test_so_it_is_over_grpc(side: str) -> None:
    request = pb.ModelInferRequest(model_name="mine")
    tensor = request.inputs.add(name="input", datatype="BYTES", shape=[1, 1])
    if side == "outputs":
        tensor.contents.bytes_contents.append(b"a")
    named = tensor if side == "inputs" else request.outputs.add(name="output")
    named.parameters["shared_memory_region"].string_param = "absent"
    named.parameters["shared_memory_byte_size"].int64_param = 4
    async with served("grpc") as (_, channel):
        infer = channel.unary_unary(
            f"/{SERVICE.full_name}/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        refused_in = "'m' is for certain models and may not name shared memory regions"
        for key, told in ((KEY, refused_in), (WHOLE, "not registered")):
            with pytest.raises(grpc.aio.AioRpcError, match=told):
                await infer(request, metadata=(("x-api-key", key.key),), timeout=20)


async def test_shared_memory_is_not_for_a_key_of_one_model() -> None:
    async with served("grpc") as (_, channel):
        for method in SERVICE.methods:
            if method.name.startswith("SystemSharedMemory"):
                told = await call(channel, method, "r")
                assert "PERMISSION_DENIED" in told, method.name
                assert "'m' is for certain models" in told, method.name


async def test_no_method_tells_another_model_from_none() -> None:
    async with served("grpc") as (_, channel):
        for method in SERVICE.methods:
            if method.name == "ModelReady":
                continue  # a caller that knows a name may ask that
            told = {}
            for name in ("secret", "absent", ""):
                told[name] = await call(channel, method, name)
            assert told["secret"].replace("secret", "absent") == told["absent"], method.name
            assert "secret" not in told[""], method.name


async def call(channel: Any, method: Any, name: str) -> str:
    request = getattr(pb, method.input_type.name)()
    for field in request.DESCRIPTOR.fields:
        if field.name in ("name", "model_name", "repository_name"):
            setattr(request, field.name, name)
    streams = method.name == "ModelStreamInfer"
    ask = (channel.stream_stream if streams else channel.unary_unary)(
        f"/{SERVICE.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=getattr(pb, method.output_type.name).FromString,
    )
    metadata = (("x-api-key", KEY.key),)
    try:
        if streams:
            return "".join([str(each) async for each in ask(iter([request]), metadata=metadata)])
        return str(await ask(request, metadata=metadata, timeout=20))
    except grpc.aio.AioRpcError as error:
        return f"{error.code()}: {error.details()}"
