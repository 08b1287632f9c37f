"""LoRA adapters on the CPU: many in one batch, loaded and unloaded while answers are computed."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from models import Engine, build
from peft_folders import loaded, merged, save_adapter
from serving import Serving, serving
from transformers import PreTrainedModel

import headway
from headway.config import KeyConfig
from headway.errors import ConfigError, Forbidden, UnknownModel
from headway.hosting.generation.adapter_folder import AdapterFolder
from headway.hosting.registry import Ask, Registry
from headway.server.auth.keys import KeyRing, new_key
from headway.server.service.models import VisibleModels
from headway.server.service.options import ask_from

pytestmark = pytest.mark.real_time
PROMPTS = [tuple(range(10, 10 + length)) for length in (3, 9, 30)]
KINDS: dict[str, dict[str, Any]] = {
    "all": {"seed": 1},
    "attention, high rank": {"seed": 2, "rank": 12, "targets": ("q_proj", "v_proj")},
    "rslora": {"seed": 3, "rank": 6, "targets": ("o_proj", "down_proj"), "use_rslora": True},
    "mixed ranks": {
        "seed": 4,
        "ranks": {"k_proj": 2, "up_proj": 7},
        "alpha_pattern": {"up_proj": 3.0},
    },
}
FAST = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def base(folder: Path) -> PreTrainedModel:
    return loaded(folder)


@pytest.fixture(scope="module")
def folders(base: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: save_adapter(root / name.replace(", ", "-").replace(" ", "-"), base, **fields)
        for name, fields in KINDS.items()
    }


def load(engine: Engine, name: str, folder: Path) -> None:
    engine.runner.adapters.add(name, engine.runner.adapters.read(folder))


def gap(model: PreTrainedModel, prompt: tuple[int, ...], text: list[int]) -> float:
    """How far the likeliest token was above the chosen one, at most."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(text)[:, None])[:, 0]
    return float((logits.max(-1).values - chosen).max())


# ---- the same text as merged weights, in any company


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "transformers", "gpt2"])
def test_a_mixed_batch_equals_each_alone_and_merged_weights(kind: str, tmp_path: Path) -> None:
    folder = build("llama" if kind == "transformers" else kind, tmp_path / "model")
    model = loaded(folder)
    targets = {"targets": ("c_attn", "c_fc", "mlp.c_proj")} if kind == "gpt2" else {}
    kinds = {
        name: {**fields, **targets, "ranks": {}} if kind == "gpt2" else fields
        for name, fields in KINDS.items()
    }
    options = {"use_transformers": kind in ("transformers", "gpt2"), "step_tokens": 24}
    together = Engine(folder, **options)
    wanted = {"": model}
    for index, (name, fields) in enumerate(kinds.items()):
        made = save_adapter(tmp_path / str(index), model, **fields)
        wanted[name] = merged(model, made)
        load(together, name, made)
    asked = [(name, prompt) for prompt in PROMPTS for name in wanted]
    numbers = [together.submit(prompt, adapter=name) for name, prompt in asked]
    together.run()
    texts = [together.answers[number].tokens for number in numbers]
    for (name, prompt), text in zip(asked, texts, strict=True):
        assert gap(wanted[name], prompt, text) <= 1e-3, name
    assert len({tuple(text) for text in texts[-len(wanted) :]}) == len(wanted)  # they differ
    alone = Engine(folder, **options)
    for index, name in enumerate(kinds):
        load(alone, name, tmp_path / str(index))
    for (name, prompt), text in zip(asked, texts, strict=True):
        number = alone.submit(prompt, adapter=name)
        alone.run()
        assert alone.answers[number].tokens == text


def test_more_adapters_than_slots_give_the_same_text(
    folder: Path, folders: dict[str, Path]
) -> None:
    plenty, scarce = Engine(folder), Engine(folder, adapter_slots=1)
    texts = []
    for engine in (plenty, scarce):
        for name, each in folders.items():
            load(engine, name, each)
        numbers = [
            engine.submit(prompt, adapter=name)
            for _ in range(2)
            for prompt in PROMPTS
            for name in ("", *folders)
        ]
        engine.run()
        texts.append([engine.answers[number].tokens for number in numbers])
    assert texts[0] == texts[1]


def test_an_adapters_prefix_is_its_own(folder: Path, folders: dict[str, Path]) -> None:
    engine = Engine(folder)
    load(engine, "all", folders["all"])
    for adapter in ("", "all", "all", ""):
        number = engine.submit(PROMPTS[2], adapter=adapter)
        engine.run()
        found = engine.answers[number].finished
        assert found is not None
        assert bool(found.cached_tokens) is (number >= 2)


# ---- what is refused


def config_of(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


REFUSED: dict[str, Callable[[Path], Any]] = {
    "use_dora is not supported": lambda each: config_of(each, use_dora=True),
    "bias = 'all' is not supported": lambda each: config_of(each, bias="all"),
    "modules_to_save is not supported": lambda each: config_of(each, modules_to_save=["lm_head"]),
    "target_parameters is not": lambda each: config_of(each, target_parameters=["experts"]),
    "peft_type is 'IA3'": lambda each: config_of(each, peft_type="IA3"),
    "init_lora_weights = 'pissa'": lambda each: config_of(each, init_lora_weights="pissa"),
    "something_new is not supported": lambda each: config_of(each, something_new=3),
    "has rank 4; adapter_config.json says 8": lambda each: config_of(each, r=8),
    "r must be more than 0": lambda each: config_of(each, r=0),
    "adapter_config.json": lambda each: (each / "adapter_config.json").write_text("{"),
    "holds no adapter_model.safetensors": lambda each: (
        each / "adapter_model.safetensors"
    ).unlink(),
    "adapter_model.safetensors: ": lambda each: (each / "adapter_model.safetensors").write_bytes(
        b"no tensors"
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_understood_is_refused_by_name(
    why: str, folder: Path, base: PreTrainedModel, tmp_path: Path
) -> None:
    made = save_adapter(tmp_path / "made", base, seed=5, targets=("q_proj",))
    REFUSED[why](made)
    with pytest.raises(ConfigError, match=why):
        Engine(folder).runner.adapters.read(made)


def test_modules_that_do_not_fit_are_refused_by_name(
    folder: Path, base: PreTrainedModel, tmp_path: Path
) -> None:
    adapters = Engine(folder).runner.adapters
    head = save_adapter(tmp_path / "head", base, seed=6, targets=("lm_head",))
    with pytest.raises(ConfigError, match="changes lm_head"):
        adapters.read(head)
    high = save_adapter(tmp_path / "high", base, seed=6, rank=65, targets=("q_proj",))
    with pytest.raises(ConfigError, match="rank is 65; max_adapter_rank is 64"):
        adapters.read(high)
    other = loaded(build("gpt2", tmp_path / "gpt2"))
    foreign = save_adapter(tmp_path / "foreign", other, seed=6, targets=("c_attn",))
    with pytest.raises(ConfigError, match="changes transformer"):
        adapters.read(foreign)


# ---- in process


async def test_a_generator_has_adapters(folder: Path, folders: dict[str, Path]) -> None:
    named = {"a": folders["all"], "b": folders["rslora"]}
    prompt = list(PROMPTS[1])
    async with headway.Generator(
        str(folder), dtype="float32", kv_cache_gib=0.01, threads=1, adapters=named
    ) as generator:
        assert generator.adapters == ["a", "b"]
        plain, a, b = await asyncio.gather(
            *(generator.generate(prompt, adapter=each, **FAST) for each in ("", "a", "b"))
        )
        assert len({plain.tokens, a.tokens, b.tokens}) == 3
        with pytest.raises(UnknownModel, match="no adapter 'c'; there are: a, b"):
            await generator.generate(prompt, adapter="c", **FAST)
        streaming = generator.stream(prompt, adapter="a", **{**FAST, "max_tokens": 100})
        first = await anext(streaming)
        await generator.load_adapter("a", folders["rslora"])  # under load, in its place
        assert (await generator.generate(prompt, adapter="a", **FAST)).tokens == b.tokens
        await generator.unload_adapter("a")
        with pytest.raises(UnknownModel, match="'a'"):
            await generator.generate(prompt, adapter="a", **FAST)
        tokens = [*first.tokens]
        async for piece in streaming:  # with the weights that it began with
            tokens += piece.tokens
        assert tuple(tokens[:12]) == a.tokens
        assert len(tokens) == 100
        with pytest.raises(ConfigError, match="adapter_config"):
            await generator.load_adapter("d", folder)
        assert generator.adapters == ["b"]


async def test_a_generator_with_a_broken_adapter_does_not_start(folder: Path) -> None:
    generator = headway.Generator(
        str(folder), dtype="float32", kv_cache_gib=0.01, adapters={"broken": folder}
    )
    with pytest.raises(ConfigError, match="adapter_config"):
        async with generator:
            raise AssertionError


# ---- served


@pytest.fixture(scope="module")
def served(folder: Path, folders: dict[str, Path]) -> Iterator[Serving]:
    with serving(
        folder, adapters={"pirate": str(folders["all"])}, server={"admin_without_key": True}
    ) as found:
        yield found


def chat(served: Serving, model: str, headers: dict[str, str] | None = None) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], **FAST}
    url = f"{served.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=60.0)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_a_request_names_its_adapter_as_model_or_in_a_header(served: Serving) -> None:
    plain, named = chat(served, "tiny"), chat(served, "pirate")
    assert text_of(plain) != text_of(named)
    assert named.json()["model"] == "pirate"
    by_header = chat(served, "tiny", {"Headway-Adapter": "pirate"})
    assert text_of(by_header) == text_of(named)
    unknown = chat(served, "tiny", {"Headway-Adapter": "nobody"})
    assert unknown.status_code == 404
    assert "no adapter 'nobody'; there are: pirate" in unknown.json()["error"]["message"]
    both = chat(served, "pirate", {"Headway-Adapter": "tiny"})
    assert both.status_code == 400
    assert chat(served, "nobody").json()["error"]["code"] == "model_not_found"


CALLS: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {"model": "NAME", "messages": [{"role": "user", "content": "a"}]}),
    ("/v1/completions", {"model": "NAME", "prompt": "a"}),
    ("/tokenize", {"model": "NAME", "prompt": "a"}),
    ("/detokenize", {"model": "NAME", "tokens": [1]}),
    ("/v1/predict/NAME", "a"),
    ("/v2/models/NAME/generate", {"text_input": "a"}),
    ("/v2/models/NAME/generate_stream", {"text_input": "a"}),
]


@pytest.mark.parametrize(("path", "body"), CALLS, ids=[path for path, _ in CALLS])
@pytest.mark.parametrize("place", ["name", "header"])
def test_an_adapter_that_is_not_there_is_a_404_on_every_route(
    served: Serving, path: str, body: Any, place: str
) -> None:
    name, headers = ("nobody", {}) if place == "name" else ("tiny", {"Headway-Adapter": "nobody"})
    said = json.loads(json.dumps(body).replace("NAME", name))
    url = f"{served.url}{path.replace('NAME', name)}"
    answer = httpx.post(url, json=said, headers=headers, timeout=60.0)
    assert answer.status_code == 404, answer.text
    assert "nobody" in answer.text


def test_an_adapter_that_is_not_there_cannot_be_unloaded(served: Serving) -> None:
    answer = httpx.post(f"{served.url}/v1/unload_lora_adapter", json={"lora_name": "nobody"})
    assert answer.status_code == 404, answer.text


def test_every_protocol_knows_an_adapter_by_its_name(served: Serving) -> None:
    body = {"text_input": "ab", **FAST}
    texts = [
        httpx.post(f"{served.url}/v2/models/{each}/generate", json=body).json()["text_output"]
        for each in ("tiny", "pirate")
    ]
    assert texts[0] != texts[1]
    body = {"model": "pirate", "prompt": "ab", **FAST}
    completed = httpx.post(f"{served.url}/v1/completions", json=body).json()
    assert completed["choices"][0]["text"] == texts[1]
    assert httpx.get(f"{served.url}/v2/models/pirate").json()["name"] == "pirate"


def test_adapters_are_listed_with_their_parent(served: Serving) -> None:
    listed = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert {each["id"]: each.get("parent") for each in listed}["pirate"] == "tiny"
    assert httpx.get(f"{served.url}/v1/models/pirate").json()["parent"] == "tiny"
    assert "parent" not in httpx.get(f"{served.url}/v1/models/tiny").json()
    assert {each["root"] for each in listed} == {"tiny"}
    assert httpx.get(f"{served.url}/version").json()["version"]
    assert httpx.get(f"{served.url}/ping").status_code == 200
    assert httpx.post(f"{served.url}/ping").status_code == 200


def test_vllms_routes_load_and_unload(served: Serving, folders: dict[str, Path]) -> None:
    def post(route: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{served.url}/v1/{route}_lora_adapter", json=body, timeout=60.0)

    path = str(folders["mixed ranks"])
    done = post("load", lora_name="json", lora_path=path)
    assert (done.status_code, done.text) == (
        200,
        "Success: LoRA adapter 'json' added successfully.",
    )
    first = text_of(chat(served, "json"))
    again = post("load", lora_name="json", lora_path=path)
    assert again.status_code == 400
    assert "loaded already" in again.json()["error"]["message"]
    other = str(folders["rslora"])
    assert post("load", lora_name="json", lora_path=other, load_inplace=True).is_success
    assert text_of(chat(served, "json")) != first
    broken = post("load", lora_name="broken", lora_path="/nowhere")
    assert broken.status_code == 400
    assert "/nowhere" in broken.json()["error"]["message"]
    assert post("load", lora_name="tiny", lora_path=path).status_code == 400  # a model's name
    assert post("load", lora_name="../x", lora_path=path).status_code == 400
    assert post("unload", lora_name="json").is_success
    assert chat(served, "json").status_code == 404
    assert post("unload", lora_name="json").status_code == 404


def test_admins_routes_load_and_unload(served: Serving, folders: dict[str, Path]) -> None:
    route = f"{served.url}/admin/models/tiny/adapters"
    body = {"folder": str(folders["rslora"])}
    for _ in range(2):  # in its place, too
        answer = httpx.post(f"{route}/formal/load", json=body, timeout=60.0)
        assert [each["name"] for each in answer.json()["adapters"]] == ["formal", "pirate"]
    assert text_of(chat(served, "formal")) != text_of(chat(served, "tiny"))
    answer = httpx.post(f"{route}/formal/unload")
    assert [each["name"] for each in httpx.get(route).json()["adapters"]] == ["pirate"]
    assert answer.is_success
    assert httpx.post(f"{route}/formal/unload").status_code == 404
    assert httpx.post(f"{route}/x/load", json={"path": "x"}).status_code == 400


def test_adapters_come_and_go_under_load(served: Serving, folders: dict[str, Path]) -> None:
    async def main() -> None:
        book = served.model.adapters
        wanted = await served.model.predict("ab", Ask(adapter="pirate", parameters=dict(FAST)))

        async def ask(adapter: str, found: list[str]) -> None:
            for _ in range(6):
                ask = Ask(adapter=adapter, parameters=dict(FAST))
                found.append(await served.model.predict("ab", ask))

        texts: list[str] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(ask("pirate", texts))
                group.create_task(ask("", []))
            for number in range(6):
                await book.load(f"n{number}", folders["mixed ranks"])
                await book.unload(f"n{number}")
        assert texts == [wanted] * 18

    served.run(main)
    assert served.model.adapter_names() == ["pirate"]


def test_a_watched_folder_is_followed(
    served: Serving, base: PreTrainedModel, tmp_path: Path
) -> None:
    async def main() -> None:
        book = served.model.adapters
        watched = AdapterFolder(book, tmp_path)
        save_adapter(tmp_path / "one", base, seed=11)
        (tmp_path / "empty").mkdir()
        (tmp_path / "pirate").mkdir()
        save_adapter(tmp_path / "pirate", base, seed=12)  # the name is taken
        await watched.look()
        assert served.model.adapter_names() == ["one", "pirate"]
        before = book.key_of("one")
        await watched.look()
        assert book.key_of("one") == before
        save_adapter(tmp_path / "one", base, seed=13, rank=2)
        await watched.look()
        assert book.key_of("one") != before
        config_of(tmp_path / "one", use_dora=True)  # broken: the one before stays
        await watched.look()
        assert "one" in book
        for each in (tmp_path / "one").iterdir():
            each.unlink()
        await watched.look()
        assert served.model.adapter_names() == ["pirate"]

    served.run(main)


def test_a_key_needs_the_adapters_name(served: Serving) -> None:
    registry = Registry()
    registry.add(served.model)
    models = VisibleModels(registry)
    secret = new_key()
    key = KeyConfig(id="k", hash=secret.hash, tenant="t", models=("tiny",))
    caller = KeyRing([key], 0.0).find({"x-api-key": secret.key})
    assert caller is not None
    assert models.adapters(caller) == {}
    assert models.adapters(None) == {"pirate": "tiny"}
    with pytest.raises(Forbidden, match="'pirate'"):
        models.find_ready(caller, "pirate")
    with pytest.raises(Forbidden, match="'pirate'"):
        ask_from({}, {"headway-adapter": "pirate"}, caller)


def test_an_adapter_survives_its_engine(served: Serving) -> None:
    before = text_of(chat(served, "pirate"))
    worker = served.model.workers()[0]
    assert worker.pid is not None
    if worker.pid == os.getpid():
        pytest.skip("the engine is a thread here")

    async def main() -> str:
        ask = Ask(adapter="pirate", parameters={**FAST, "max_tokens": 120})
        stream = served.model.stream("ab", ask)
        first = await anext(stream)
        os.kill(worker.pid or 0, signal.SIGKILL)
        return first + "".join([each async for each in stream])

    text = served.run(main)
    wanted = {"text_input": "ab", **FAST, "max_tokens": 120}
    whole = httpx.post(f"{served.url}/v2/models/pirate/generate", json=wanted, timeout=60.0)
    assert text == whole.json()["text_output"]
    assert text_of(chat(served, "pirate")) == before
