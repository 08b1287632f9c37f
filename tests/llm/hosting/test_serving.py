"""A language model as one of the server's models: every protocol, clients that leave, settings."""

import asyncio
import hashlib
import json
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import httpx
import msgspec
import pytest
from models import VOCABULARY
from serving import MOST_S, Serving, serving

import headway
from headway.config import Config, KeyConfig, ModelConfig, ServerConfig
from headway.errors import ConfigError, DeadlineExceeded, InvalidInput, Shed
from headway.hosting.generation.served import ServedGenerator
from headway.hosting.hosted import Served
from headway.hosting.registry import Ask, Registry
from headway.models import catalogue, functions
from headway.models.chat.model import LanguageModel
from headway.models.chat.templates import ChatTemplate
from headway.server.auth.guard import Guard
from headway.server.families.openai.generation_request import language_of
from headway.server.grpc import inference_pb2 as pb
from headway.server.run import make_app
from headway.server.run import serving as serving_models
from headway.wire.messages import Request

pytestmark = pytest.mark.real_time
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "temperature": 0,
    "ignore_eos": True,
}


def wait_until(is_so: Any) -> None:
    """With an end to it; what is waited for comes from another thread."""
    end = time.monotonic() + MOST_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


def used(served: Serving) -> float:
    now = served.model.now()
    assert now is not None
    return now.cache_usage + now.running + now.waiting


# ---- every protocol


def test_v2_generates_whole_and_as_it_comes(served: Serving) -> None:
    route = f"{served.url}/v2/models/tiny"
    body = {"text_input": "ab", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = httpx.post(f"{route}/generate", json=body).json()
    assert whole["model_name"] == "tiny"
    with httpx.stream("POST", f"{route}/generate_stream", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    texts = [json.loads(line[6:])["text_output"] for line in lines]
    assert "".join(texts) == whole["text_output"]
    assert len(texts) > 1
    explained = httpx.post(f"{route}/generate", json=body, headers={"Headway-Explain": "1"})
    assert "steps=12" in explained.headers["headway-batch"]
    asked = {"headers": {"Headway-Explain": "1"}, "json": body}
    with httpx.stream("POST", f"{route}/generate_stream", **asked) as answer:
        *_, last = [json.loads(line[6:]) for line in answer.iter_lines() if line]
    assert last["model_name"] == explained.json()["model_name"]
    assert last["headway"][0]["steps"] == 12
    for place in (body, {**body, "parameters": {"stream": False}}):
        assert httpx.post(f"{route}/generate", json=place).is_success


def test_v2_refuses_what_it_does_not_know_by_name(served: Serving) -> None:
    route = f"{served.url}/v2/models/tiny/generate"
    for name, value in (("colour", 1), ("temperature", -1), ("max_tokens", 0)):
        answer = httpx.post(route, json={"text_input": "ab", name: value})
        assert answer.status_code == 400
        assert name in answer.json()["error"]
    too_long = httpx.post(route, json={"text_input": "x" * 300})
    assert too_long.status_code == 413
    assert "256" in too_long.json()["error"]


def test_the_plain_route_and_tensors_have_it_too(served: Serving) -> None:
    query = "max_tokens=5&temperature=0&ignore_eos=true"
    plain = httpx.post(f"{served.url}/v1/predict/tiny?{query}", json="ab").json()
    tensor = {"name": "text_input", "shape": [2], "datatype": "BYTES", "data": ["ab", "x"]}
    parameters = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(
        f"{served.url}/v2/models/tiny/infer", json={"inputs": [tensor], "parameters": parameters}
    )
    assert answer.json()["outputs"][0]["data"][0] == plain
    metadata = httpx.get(f"{served.url}/v2/models/tiny").json()
    assert metadata["inputs"][0]["name"] == "text_input"
    assert httpx.get(f"{served.url}/openapi.json").status_code == 200


def test_grpc_streams(served: Serving) -> None:
    request = pb.ModelInferRequest(model_name="tiny", id="7")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.inputs[0].contents.bytes_contents.append(b"ab")
    request.parameters["max_tokens"].int64_param = 10
    request.parameters["temperature"].double_param = 0.0
    request.parameters["ignore_eos"].bool_param = True
    with grpc.insecure_channel(served.grpc) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        answers = list(call(iter([request]), timeout=MOST_S))
    assert [each.error_message for each in answers] == [""] * len(answers)
    texts = [each.infer_response.raw_output_contents[0][4:] for each in answers]
    body = {"text_input": "ab", "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    whole = httpx.post(f"{served.url}/v2/models/tiny/generate", json=body).json()
    assert b"".join(texts).decode() == whole["text_output"]


def lengths(texts: list[str]) -> list[int]:
    return [len(each) for each in texts]


def test_a_model_that_does_not_generate_is_refused_by_name(folder: Path) -> None:
    other = Served(
        ModelConfig(name="words", target="here", warm_up=False),
        model=functions.model_of(lengths, "")(),
    )
    with pytest.raises(InvalidInput, match="model: 'words' does not generate"):
        language_of(other)


# ---- who leaves, who is slow


def test_a_client_that_leaves_its_stream_frees_its_blocks(served: Serving) -> None:
    body = {**CHAT, "max_tokens": 240, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    wait_until(lambda: used(served) == 0)
    text = httpx.get(f"{served.url}/metrics").text
    assert 'finished_reason="abort"} 0' not in text


def test_a_client_that_leaves_before_its_answer_frees_its_blocks(served: Serving) -> None:
    body = json.dumps({**CHAT, "max_tokens": 240, "n": 3}).encode()
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        wait_until(lambda: used(served) > 0)
    wait_until(lambda: used(served) == 0)


def test_a_deadline_ends_an_answer(served: Serving) -> None:
    answer = httpx.post(
        f"{served.url}/v1/chat/completions",
        json={**CHAT, "max_tokens": 240},
        headers={"Headway-Timeout-Ms": "1"},
    )
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    wait_until(lambda: used(served) == 0)


def test_a_reader_that_never_reads_is_cut_off(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.runtime.driving.streams.MAX_BACKLOG", 10)

    async def never_read() -> None:
        stream = await served.model.open_stream(
            "ab", Ask(parameters={"max_tokens": 200, "temperature": 0, "ignore_eos": True})
        )
        told = asyncio.Event()
        stream.attach(told.set)
        while served.model.is_busy:
            await told.wait()
            told.clear()
        stream.take()
        with pytest.raises(Shed):
            stream.is_at_end()

    served.run(never_read)
    wait_until(lambda: used(served) == 0)


def test_a_reader_that_pauses_gets_every_token_in_its_order(served: Serving) -> None:
    body = {**CHAT, "max_tokens": 240, "n": 12}
    whole = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=MOST_S).json()
    body |= {"logprobs": True, "top_logprobs": 20}  # megabytes: the sockets' buffers are full
    sent = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    host, port = served.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(sent)}\r\n\r\n"
        client.sendall(head.encode() + sent)
        client.recv(1)
        wait_until(lambda: used(served) == 0)  # all is computed, and most of it waits
        with client.makefile("rb") as file:
            lines = [line[6:] for line in file if line.startswith(b"data: ")]
    assert lines.pop() == b"[DONE]\n"
    *events, last = map(json.loads, lines)
    texts = [""] * 12
    for choice in (each["choices"][0] for each in events):
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [each["message"]["content"] for each in whole["choices"]]
    assert last["usage"]["completion_tokens"] == 12 * 240


def test_draining_lets_streams_end(folder: Path) -> None:
    body = {**CHAT, "max_tokens": 200, "stream": True}
    with serving(folder) as own:
        url = f"{own.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=MOST_S) as answer:
            lines = answer.iter_lines()
            next(lines)
            closing = threading.Thread(
                target=own.run, args=(lambda: own.model.close(drain_s=MOST_S),)
            )
            closing.start()
            wait_until(lambda: not own.model.is_ready)
            rest = [line for line in lines if line]
        closing.join(MOST_S)
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"


def test_many_at_once_are_each_their_own(served: Serving) -> None:
    """More than run at once: some wait, and none is crossed."""
    prompts = [chr(97 + index) * (index + 1) for index in range(20)]

    async def ask(prompt: str) -> str:
        parameters = {"max_tokens": 10, "temperature": 0, "ignore_eos": True}
        return str(await served.model.predict(prompt, Ask(parameters=parameters)))

    async def together() -> list[str]:
        return list(await asyncio.gather(*map(ask, prompts)))

    async def alone() -> list[str]:
        return [await ask(each) for each in prompts]

    assert served.run(together) == served.run(alone)


# ---- the model


def test_defaults_and_several_ends_are_the_models_own(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for file in folder.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    with serving(own) as before:
        body = {"text_input": "ab", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        text = httpx.post(f"{before.url}/v2/models/tiny/generate", json=body).json()["text_output"]
        ids = httpx.post(
            f"{before.url}/v1/completions",
            json={
                "model": "tiny",
                "prompt": "ab",
                "max_tokens": 30,
                "logprobs": 0,
                "temperature": 0,
            }
            | {"ignore_eos": True},
        ).json()["choices"][0]["logprobs"]["tokens"]
    assert len(ids) == 30
    assert text
    at, end = _first_known(before, ids)
    (own / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [2, end], "temperature": 0.0})
    )
    with serving(own) as after:
        answer = httpx.post(
            f"{after.url}/v1/completions", json={"model": "tiny", "prompt": "ab", "max_tokens": 30}
        ).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == at + 1


def _first_known(served: Serving, tokens: list[str]) -> tuple[int, int]:
    """The first of them that only one id is spelled as: where it stands, and the id."""
    language = served.model.language
    assert language is not None
    for at, token in enumerate(tokens):
        spelled = (
            bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
            if token.startswith("bytes:")
            else token.encode()
        )
        found = [each for each in range(VOCABULARY) if language.bytes_of(each) == spelled]
        if len(found) == 1:
            return at, found[0]
    raise AssertionError("no token of the answer is known by its text")


def test_a_template_that_raises_is_the_messages_fault() -> None:
    template = ChatTemplate("{{ raise_exception('no system') }}", where="here")
    with pytest.raises(InvalidInput, match=r"messages: .*no system"):
        template.render([])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x' * 10000000000 }}",
        "{{ messages[0].nothing.there }}",
        "{{ ('x' * 60000) | replace('x', 'y' * 60000) }}",
        "{{ 'x' | center(99999999999) }}",
        "{{ '%99999999999d' | format(1) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_reaches_nothing(source: str) -> None:
    with pytest.raises(InvalidInput, match=r"^messages: "):
        ChatTemplate(source, where="here").render([{"role": "user", "content": "x"}])


def test_a_template_has_a_time_limit() -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    long = "{{ range(99999) | map('string') | map('length') | list | length }}"
    inside = "{% for a in range(99999) %}" + long + "{% endfor %}"
    for source in (loop, long, inside):
        limit_s = 1e-4 if source == long else 0.05
        with pytest.raises(InvalidInput, match=r"took longer than"):
            ChatTemplate(source, where="here", limit_s=limit_s).render([])


# ---- settings


class Echo(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return items


def test_settings_of_the_other_kind_are_refused_by_name(folder: Path) -> None:
    for name, value in {
        "max_batch_size": 8,
        "max_wait_ms": 3.0,
        "policy": "window",
        "workers": 2,
        "slo_ms": 10.0,
        "buckets": "64",
    }.items():
        config = ModelConfig(name="tiny", target=str(folder), **{name: value})
        with pytest.raises(ConfigError, match=f"^{name}: "):
            ServedGenerator(config, LanguageModel(str(folder)))
    for name, value in {
        "max_context": 64,
        "max_sequences": 8,
        "step_tokens": 64,
        "kv_cache_gib": 0.5,
        "dtype": "float32",
        "device": "cpu",
        "share_prefixes": True,
    }.items():
        config = ModelConfig(name="other", target="builtins:sorted", **{name: value})
        with pytest.raises(ConfigError, match=f"^{name}: "):
            Served(config, model=Echo())


def test_a_folder_a_file_and_a_name_are_language_models(folder: Path) -> None:
    for target in (str(folder), "model.gguf", "chat"):
        assert isinstance(catalogue.build(target, {}), LanguageModel)
    with pytest.raises(ConfigError, match="colour"):
        catalogue.build(str(folder), {"colour": 1})


async def test_the_keeper_loads_drains_and_closes_it(folder: Path) -> None:
    settings: dict[str, Any] = {"kv_cache_gib": 0.01, "max_sequences": 4}
    model = msgspec.convert(
        {"name": "tiny", "target": str(folder), "options": {"threads": 1}, **settings}, ModelConfig
    )
    async with serving_models(Config(models=(model,))) as registry:
        assert registry.is_ready
        found = registry.find_ready("tiny")
        parameters = {"max_tokens": 3, "temperature": 0}
        assert isinstance(await found.predict("ab", Ask(parameters=parameters)), str)
        with pytest.raises(DeadlineExceeded):
            await found.predict("ab", Ask(deadline_ms=1e-3))
    assert not found.is_ready


def test_the_page_to_talk_to_it_is_complete_in_itself(served: Serving) -> None:
    answer = httpx.get(f"{served.url}/chat")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert set(re.findall(r"""(?:src|href)=["']([^"']+)""", answer.text)) <= {
        *("data:,", "openapi.json", "./", "chat", "dashboard", "docs", "#content")
    }
    assert "http://" not in answer.text
    assert "https://" not in answer.text


async def test_a_keys_tenant_goes_with_every_answer(folder: Path) -> None:
    """Whatever tenant a header names; and its quota is counted."""
    asked: list[Ask] = []

    class Seen(ServedGenerator):
        def stream(self, value: Any, ask: Ask) -> Any:
            stream = super().stream(value, ask)  # it is refused where the quota is used up
            asked.append(ask)
            return stream

    hash_ = "sha256:" + hashlib.sha256(b"secret").hexdigest()
    key = KeyConfig(id="a", hash=hash_, tenant="acme", rows_per_s=1.0)
    model = Seen(
        ModelConfig(name="tiny", target=str(folder), kv_cache_gib=0.01),
        LanguageModel(str(folder), threads=1),
    )
    registry = Registry()
    registry.add(model)
    await model.start()
    try:
        config = ServerConfig(port=0)
        app = make_app(registry, config, guard=Guard(config, (key,)))
        body = json.dumps({**CHAT, "max_tokens": 2}).encode()
        headers = {"headway-tenant": "somebody else", "authorization": "Bearer secret"}
        route = "/v1/chat/completions"
        first = await app.handle(Request("POST", route, "", headers, body, "1"))
        second = await app.handle(Request("POST", route, "", headers, body, "2"))
        few = KeyConfig(id="b", hash=hash_, tenant="acme", tokens_per_minute=30.0)
        app = make_app(registry, config, guard=Guard(config, (few,)))
        body = json.dumps({**CHAT, "max_tokens": 10}).encode()
        answers = [
            await app.handle(Request("POST", route, "", headers, body, str(number)))
            for number in range(2)
        ]
        # A token that ends the answer at once: what was reserved for the rest is given back.
        app = make_app(registry, config, guard=Guard(config, (few,)))
        short = {**CHAT, "max_tokens": 10, "ignore_eos": False, "logit_bias": {"2": 100}}
        body = json.dumps(short).encode()
        refunded = [
            await app.handle(Request("POST", route, "", headers, body, str(number)))
            for number in range(2)
        ]
    finally:
        await model.close(drain_s=1)
    assert (first.status, second.status) == (200, 429)
    assert {each.tenant for each in asked} == {"acme"}
    assert [each.status for each in answers] == [200, 429]  # each reserves more than half of them
    assert [each.status for each in refunded] == [200, 200]


@pytest.mark.parametrize("share_prefixes", [False, True])
def test_a_cached_beginning_is_its_tenants_and_its_salts(
    folder: Path, share_prefixes: bool
) -> None:
    """What the cache knows of others' prompts is seen neither in `usage` nor in how long it takes:
    nothing is found there."""
    messages = [{"role": "user", "content": "secret " * 9}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 2}

    def cached(served: Serving, tenant: str, **more: Any) -> int:
        headers = {"Headway-Tenant": tenant} if tenant else {}
        answer = httpx.post(
            f"{served.url}/v1/chat/completions",
            json={**body, **more},
            headers=headers,
            timeout=MOST_S,
        )
        found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    with serving(folder, share_prefixes=share_prefixes) as served:
        assert cached(served, "a") == 0
        whole = cached(served, "a")
        assert whole >= 32
        # The same letters, cut elsewhere; another tenant, none, a salt of one's own.
        others = [("b", {}), ("", {}), ("", {"cache_salt": "a"}), ("ab", {"cache_salt": "c"})]
        for tenant, more in others:
            is_shared = share_prefixes and not more
            assert cached(served, tenant, **more) == (whole if is_shared else 0), (tenant, more)
        assert cached(served, "a", cache_salt="bc") == 0
        assert cached(served, "a", cache_salt="bc") == whole
