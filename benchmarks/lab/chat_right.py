"""Is the chat model right? Token by token beside `transformers`, and as JSON where that is asked.

`.venv-llm/bin/python -m benchmarks.lab chat-right chat-json`; the model is that of
`headway models get chat`.
"""

import asyncio
import itertools
import json
from collections.abc import Sequence as Texts
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import Bar, Benchmark, Report
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Finished, Sequence
from headway.core.generation.step import Step

MOST_GAP, MOST_LOGPROB_GAP = 1e-4, 1e-3
TOP = 3  # log-probabilities beside the chosen one's
QUESTIONS = (
    "What is the capital of France?",
    "Write one short sentence about the ocean.",
    "Name three colours.",
    "What is 2 + 2?",
    "Translate to French: good morning",
    "Say yes.",
    "List the days of the week, one a line.",
    "Why is the sky blue? Explain it to a child, in two sentences.",
    "Write a haiku about autumn leaves falling on a quiet pond at dusk.",
    "Write a Python function that adds two numbers.",
    "日本の首都はどこですか。",
    "Summarise: " + "The cat sat on the mat, and looked at the rain. " * 14,
)


class Spoken(NamedTuple):
    tokens: list[int]
    logprobs: list[Any]
    finished: Finished


class Setting(NamedTuple):
    prefixes: bool
    chunks: bool
    preemption: bool

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {'on' if is_on else 'off'}"
            for name, is_on in zip(self._fields, self, strict=True)
        )

    def limits(self, limits: Any, few_blocks: int) -> Any:
        """Those of the engine, with each forced on or off."""
        return replace(
            limits,
            max_sequences=16,
            chunking=self.chunks,
            step_tokens=48 if self.chunks else 1024,
            max_context=512,
            blocks=few_blocks if self.preemption else limits.blocks,
        )


# Too few for all questions at once, with 32 tokens out: for the first six, and for all.
FEW_BLOCKS = {6: 8, len(QUESTIONS): 18}
OUT = 32
SETTINGS = [Setting(*each) for each in itertools.product((True, False), repeat=3)]


def speak(
    runner: Any, setting: Setting, prompts: Texts[tuple[int, ...]]
) -> tuple[list[Spoken], int]:
    """All of them at once, in the engine, and once more; how often one was preempted."""
    scheduler = GenerationScheduler(setting.limits(runner.limits, FEW_BLOCKS[len(prompts)]))
    numbers = itertools.count(1)
    found: dict[int, Spoken] = {}
    for _ in range(2):  # the second time, prefixes may be cached
        tokens: dict[int, list[int]] = {}
        logprobs: dict[int, list[Any]] = {}
        for prompt in prompts:
            number = next(numbers)
            salt = "" if setting.prefixes else str(number)
            scheduler.submit(Sequence(number, float(number), prompt, OUT, salt=salt))
            runner.add(number, prompt, Sampling(temperature=0.0, logprobs=TOP))
            tokens[number], logprobs[number] = [], []
        while scheduler.running or scheduler.waiting:
            step = scheduler.next_step(0.0)
            assert isinstance(step, Step)
            sampled = runner.run(step)
            for each, token, told in zip(
                step.sampled, sampled.tokens, sampled.logprobs, strict=True
            ):
                tokens[each].append(token)
                logprobs[each].append(told)
            for finished in scheduler.complete(step, sampled.tokens):
                number = finished.sequence
                runner.drop(number)
                found[number] = Spoken(tokens[number], logprobs[number], finished)
    assert scheduler.blocks_used == 0
    return [found[number] for number in sorted(found)], scheduler.preemptions


class Reference:
    """`transformers`, along a text that is given: each text once."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch: Any = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._known: dict[tuple[int, ...], Any] = {}

    def gaps(self, prompt: tuple[int, ...], spoken: Spoken) -> tuple[float, float]:
        """The most that a token falls short of the likeliest, and a log-probability is off."""
        torch, text = self._torch, (*prompt, *spoken.tokens)
        if text not in self._known:
            with torch.inference_mode():
                logits = self._model(torch.tensor([text])).logits[0, len(prompt) - 1 : -1]
            self._known[text] = logits
        logits = self._known[text]
        rows = torch.arange(len(spoken.tokens))
        chosen = logits[rows, torch.tensor(spoken.tokens)]
        gap = float((logits.max(-1).values - chosen).max())
        lines = logits.log_softmax(-1)
        off = 0.0
        for line, token, told in zip(lines, spoken.tokens, spoken.logprobs, strict=True):
            for each, value in ((token, told.chosen), *told.top):
                off = max(off, abs(float(line[each]) - value))
        return gap, off


def measure(
    settings: Texts[Setting], questions: Texts[str], target: str = "chat"
) -> tuple[list[list[object]], float, float]:
    """A row for each setting; the largest gap, and the largest of a log-probability."""
    from headway.engine.starting import EngineOptions, start
    from headway.models.chat.finding import find_language_model
    from headway.models.chat.text import ChatText

    folder = find_language_model(target)
    text, reference = ChatText(folder), Reference(folder)
    prompts = [tuple(text.encode_chat([{"role": "user", "content": each}])) for each in questions]
    options = EngineOptions(max_context=512, device="cpu", dtype="float32", kv_cache_gib=0.5)
    runner = start(folder, options)
    rows: list[list[object]] = []
    worst, worst_off = 0.0, 0.0
    for setting in settings:
        spoken, preemptions = speak(runner, setting, prompts)
        assert bool(preemptions) is setting.preemption, (setting, preemptions)
        cached = sum(each.finished.cached_tokens for each in spoken)
        # One that was preempted may find its own blocks again, with a salt of its own, too.
        assert bool(cached) is setting.prefixes or setting.preemption, (setting, cached)
        gaps = [reference.gaps(*pair) for pair in zip(prompts * 2, spoken, strict=True)]
        gap, off = max(each[0] for each in gaps), max(each[1] for each in gaps)
        worst, worst_off = max(worst, gap), max(worst_off, off)
        tokens = sum(len(each.tokens) for each in spoken)
        rows.append([setting, tokens, cached, preemptions, f"{gap:.1e}", f"{off:.1e}"])
    return rows, worst, worst_off


def right(quick: bool) -> Report:
    rows, worst, off = measure(SETTINGS, QUESTIONS[:6] if quick else QUESTIONS)
    return Report(
        "The chat model beside transformers, token by token (float32)",
        ["setting", "tokens", "of prompts cached", "preempted", "largest gap", "of logprobs"],
        rows,
        [
            Bar(
                f"each greedy token is transformers' argmax or within {MOST_GAP:g}",
                f"{worst:.1e}",
                worst <= MOST_GAP,
            ),
            Bar(f"logprobs within {MOST_LOGPROB_GAP:g}", f"{off:.1e}", off <= MOST_LOGPROB_GAP),
        ],
        [
            f"{6 if quick else len(QUESTIONS)} chats side by side, twice, {OUT} tokens out; "
            "teacher-forced: along the engine's own text, logits of transformers in one pass"
        ],
    )


# ---- answers that are JSON

_TEXT = {"type": "string", "maxLength": 40}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 1000}
_YES = {"type": "boolean"}
_DATE = {"type": "string", "pattern": "^[12][0-9]{3}-[01][0-9]-[0-3][0-9]$"}
_EMAIL = {"type": "string", "pattern": "^[a-z]{3,8}@[a-z]{3,8}\\.com$"}


def _one_of(*texts: str) -> dict[str, Any]:
    return {"enum": list(texts)}


def _some(item: dict[str, Any], most: int = 4) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1, "maxItems": most}


_PERSON = {"name": _TEXT, "age": _COUNT}
# What is asked, and the fields that the answer has; without fields: any object.
JSON_40: tuple[tuple[str, dict[str, Any] | None], ...] = (
    ("What is the capital of France?", {"capital": _TEXT}),
    ("What is 2 + 2?", {"result": _COUNT}),
    ("Is water wet?", {"answer": _YES}),
    ("Name three colours.", {"colours": _some(_TEXT, 3)}),
    ("Classify: I love this film!", {"sentiment": _one_of("positive", "negative", "neutral")}),
    ("Classify: the food was cold.", {"sentiment": _one_of("positive", "negative", "neutral")}),
    ("Invent a person.", _PERSON),
    ("Invent a person with a job.", {**_PERSON, "job": _TEXT}),
    ("Anna is 31 and lives in Oslo.", {**_PERSON, "city": _TEXT}),
    ("A book with its author and year.", {"title": _TEXT, "author": _TEXT, "year": _COUNT}),
    ("Which language is this: Guten Morgen", {"language": _one_of("English", "German", "French")}),
    ("Translate to French: good morning", {"french": _TEXT}),
    ("Rate the weather from 1 to 10.", {"rating": {"type": "integer", "minimum": 1, "maximum": 9}}),
    ("Is 7 a prime number?", {"is_prime": _YES, "reason": _TEXT}),
    ("Plan a day.", {"morning": _TEXT, "noon": _TEXT, "evening": _TEXT}),
    ("A shopping list.", {"items": _some({"type": "string", "maxLength": 20})}),
    ("Two numbers and their sum.", {"a": _COUNT, "b": _COUNT, "sum": _COUNT}),
    ("A recipe in short.", {"name": _TEXT, "minutes": _COUNT, "steps": _some(_TEXT, 3)}),
    ("The days of a weekend.", {"days": _some(_one_of("Friday", "Saturday", "Sunday"), 3)}),
    ("A traffic light.", {"colour": _one_of("red", "amber", "green"), "may_go": _YES}),
    ("A pet.", {"kind": _one_of("cat", "dog", "bird"), "name": _TEXT, "age": _COUNT}),
    ("A point in space.", {"x": {"type": "integer"}, "y": {"type": "integer"}}),
    ("A hotel booking for two.", {"guests": _COUNT, "nights": _COUNT, "breakfast": _YES}),
    ("A date.", {"date": _DATE}),
    (
        "An email address.",
        {"email": {"type": "string", "pattern": "^[a-z]{3,8}@[a-z]{3,8}\\.com$"}},
    ),
    ("Two people.", {"people": _some({"type": "object", "properties": _PERSON}, 2)}),
    ("A film and its rating.", {"film": _TEXT, "stars": {"enum": [1, 2, 3, 4, 5]}}),
    ("What animal says meow?", {"animal": _one_of("cat", "dog", "cow")}),
    ("A city and its country.", {"city": _TEXT, "country": _TEXT}),
    ("Nothing at all.", {"nothing": {"type": "null"}}),
    ('What is the capital of Italy? Answer as JSON, such as {"capital": "Paris"}.', None),
    ('What is 3 + 4? Answer as JSON, such as {"result": 2}.', None),
    ('Name a colour. Answer as JSON, such as {"colour": "green"}.', None),
    ('Is the sky blue? Answer as JSON, such as {"answer": true}.', None),
    ('Invent a cat. Answer as JSON, such as {"name": "Tom", "age": 3}.', None),
    ('The weather in spring? Answer as JSON, such as {"weather": "snow", "degrees": -3}.', None),
    ('Translate to French: thank you. Answer as JSON, such as {"french": "bonjour"}.', None),
    ('Classify: what a lovely day! Answer as JSON, such as {"sentiment": "negative"}.', None),
    ('How many legs has a spider? Answer as JSON, such as {"legs": 4}.', None),
    ('Name two fruits. Answer as JSON, such as {"fruits": ["pear", "plum"]}.', None),
)


def _form(fields: dict[str, Any] | None) -> dict[str, Any]:
    if fields is None:
        return {"type": "json_object"}
    schema = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


async def ask_all(out: int, seeds: Texts[int]) -> list[tuple[dict[str, Any] | None, str, str]]:
    """Of each answer: the fields, how it ended, and what it says."""
    from headway.config import ModelConfig, ServerConfig
    from headway.hosting.generation.served import ServedGenerator
    from headway.hosting.registry import Registry
    from headway.models.chat.model import LanguageModel
    from headway.server.run import make_app
    from headway.wire.messages import Request, Response

    model = ServedGenerator(
        ModelConfig(name="chat", target="chat", max_context=1024), LanguageModel("chat")
    )
    registry = Registry()
    registry.add(model)
    await model.start()
    app = make_app(registry, ServerConfig(port=0))
    at_once = asyncio.Semaphore(32)  # no more than 64 grammars may wait to be compiled

    async def ask(question: str, fields: dict[str, Any] | None, seed: int) -> Any:
        body = {
            "model": "chat",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": out,
            "response_format": _form(fields),
            **({"temperature": 0} if seed == 0 else {"seed": seed}),  # else the model's own
        }
        sent = Request("POST", "/v1/chat/completions", "", {}, json.dumps(body).encode(), "1")
        async with at_once:
            answer = await app.handle(sent)
        assert isinstance(answer, Response)
        assert answer.status == 200, answer.body
        choice = json.loads(answer.body)["choices"][0]
        return fields, choice["finish_reason"], choice["message"]["content"]

    try:
        asked = [ask(*each, seed) for each in JSON_40 for seed in seeds]
        return list(await asyncio.gather(*asked))
    finally:
        await model.close(drain_s=1)


def is_valid(fields: dict[str, Any] | None, said: str) -> bool:
    try:
        found = json.loads(said)
    except ValueError:
        return False
    return isinstance(found, dict) and (fields is None or found.keys() == fields.keys())


def as_json(quick: bool) -> Report:
    seeds = (0,) if quick else (0, 1, 2, 3)
    answers = asyncio.run(ask_all(256, seeds))
    rows, valid = [], 0
    for name, of in (("by a schema", True), ("any object", False)):
        own = [each for each in answers if (each[0] is not None) is of]
        stopped = [each for each in own if each[1] == "stop"]
        good = sum(is_valid(fields, said) for fields, _, said in stopped)
        valid += good
        rows.append([name, len(own), len(stopped), good])
    ended = sum(each[1] == "stop" for each in answers)
    share = ended / len(answers)
    return Report(
        "The chat model's answers as JSON: the set JSON_40",
        ["form", "answers", "ended by `stop`", "of these valid"],
        rows,
        [
            Bar("valid whenever finish_reason is stop", f"{valid} of {ended}", valid == ended),
            Bar("≥ 95 % end by stop", f"{share:.1%}", share >= 0.95),
        ],
        [
            f"40 questions (`JSON_40` in benchmarks/lab/chat_right.py), {len(seeds)} answers to "
            "each: greedy, and with the model's own defaults; at most 256 tokens; all at once"
        ],
    )


BENCHMARKS: dict[str, Benchmark] = {"chat-right": right, "chat-json": as_json}
