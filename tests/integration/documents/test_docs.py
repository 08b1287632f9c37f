"""The documents are true: their code runs, their links lead somewhere, their tables are complete.

The ```python blocks of a file share one namespace and run in order. A block with `await` at its
top level runs on virtual time, unless `<!-- real time -->` stands just above it. In ```console
blocks every `$ headway …` runs, with fewer requests where many are asked for.
"""

import ast
import asyncio
import dataclasses
import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import headway
from headway import errors, events
from headway.cli.main import main
from headway.core.items import Batch, FireReason, Item, RefusalReason
from headway.runtime.events import Statistics
from headway.testing import run

ROOT = Path(__file__).parents[3]
TOP = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")]
DOCUMENTS = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
REAL_TIME = "<!-- real time -->"
MOST_REQUESTS = 1000
FENCE = re.compile(r"^```(\w*)$")


class Block(NamedTuple):
    language: str
    text: str
    line: int  # of its first line of code
    is_real_time: bool


def blocks_of(path: Path) -> list[Block]:
    return list(_blocks(path.read_text().splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    opened: tuple[int, str] | None = None
    for number, line in enumerate(lines):
        if opened is None and (fence := FENCE.match(line)):
            opened = number + 1, fence[1]
        elif opened is not None and line == "```":
            first, language = opened
            above = next((each for each in reversed(lines[: first - 1]) if each.strip()), "")
            yield Block(language, "\n".join(lines[first:number]), first + 1, above == REAL_TIME)
            opened = None


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def with_blocks(*languages: str) -> list[Path]:
    return [
        path for path in DOCUMENTS if any(each.language in languages for each in blocks_of(path))
    ]


# ---- the code runs


@pytest.mark.parametrize("path", with_blocks("python", "console"), ids=name_of)
def test_the_code_in_the_document_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "document"}
    for block in blocks_of(path):
        if block.language == "python":
            run_python(block, path, namespace)
        elif block.language == "console":
            run_console(block, path)


def run_python(block: Block, path: Path, namespace: dict[str, Any]) -> None:
    text = "\n" * (block.line - 1) + block.text  # so that a traceback names the document's line
    code = compile(text, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if not code.co_flags & inspect.CO_COROUTINE:
        exec(code, namespace)
        return
    on_a_loop: Callable[[Any], Any] = asyncio.run if block.is_real_time else run
    on_a_loop(_awaited(code, namespace))


async def _awaited(code: Any, namespace: dict[str, Any]) -> None:
    await eval(code, namespace)


def run_console(block: Block, path: Path) -> None:
    for command in commands_of(block):
        assert exit_code(shortened(command)) == 0, f"{path}:{block.line}: {shlex.join(command)}"


def exit_code(command: list[str]) -> int | str | None:
    try:
        return main(command)
    except SystemExit as ended:  # --help
        return ended.code


def commands_of(block: Block) -> list[list[str]]:
    """The arguments of every `$ headway …`, lines that end in a backslash joined."""
    joined = block.text.replace("\\\n", " ").splitlines()
    headways = [line for line in joined if line.startswith("$ headway ")]
    return [shlex.split(line, comments=True)[2:] for line in headways]


def shortened(command: list[str]) -> list[str]:
    if command[0] != "simulate" or "--help" in command:
        return command
    if "--requests" in command:
        at = command.index("--requests") + 1
        fewer = str(min(MOST_REQUESTS, int(command[at])))
        return [*command[:at], fewer, *command[at + 1 :]]
    return [*command, "--requests", str(MOST_REQUESTS)]


def test_readers_find_code_in_the_readme_the_tutorial_and_every_guide() -> None:
    have_code = {name_of(path) for path in with_blocks("python", "console")}
    guides = {name_of(path) for path in (ROOT / "docs" / "guides").glob("*.md")}
    # What these need is no dependency of the tests.
    needs_more = {"docs/guides/ray.md", "docs/guides/kubernetes.md"}
    assert (guides - needs_more) | {"README.md", "docs/tutorial.md"} <= have_code


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_block_says_its_language_and_ends(path: Path) -> None:
    fences = [line for line in path.read_text().splitlines() if line.startswith("```")]
    assert len(fences) % 2 == 0
    assert all(FENCE.match(fence) and fence != "```" for fence in fences[::2])


# ---- the references are complete


def mentioned(reference: str) -> set[str]:
    text = (ROOT / "docs" / "reference" / f"{reference}.md").read_text()
    return set(re.findall(r"`([^`\n]+)`", text))


def fields_of(kind: type) -> set[str]:
    if dataclasses.is_dataclass(kind):
        names = {field.name for field in dataclasses.fields(kind)}
    else:
        names = set(getattr(kind, "_fields", ()))
    return names | {name for name, each in vars(kind).items() if isinstance(each, property)}


def options_of(function: Callable[..., Any]) -> set[str]:
    return {
        name
        for name, each in inspect.signature(function).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not name.startswith("_")
    }


@pytest.mark.parametrize(
    "function",
    [headway.Batcher, headway.Batcher.submit, headway.Batcher.close, headway.Batcher.warm_up],
    ids=lambda function: function.__qualname__,
)
def test_every_option_is_in_the_reference(function: Callable[..., Any]) -> None:
    assert options_of(function) <= mentioned("configuration")


def test_the_reference_gives_the_defaults_that_the_code_has() -> None:
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, flags=re.MULTILINE))
    for name, each in inspect.signature(headway.Batcher).parameters.items():
        if name in options_of(headway.Batcher):
            assert ast.literal_eval(told[name]) == each.default, name


def test_every_error_is_in_the_reference_with_its_code() -> None:
    kinds = [each for each in vars(errors).values() if inspect.isclass(each)]
    ours = [each for each in kinds if issubclass(each, errors.HeadwayError)]
    assert len(ours) > 10
    assert {each.__name__ for each in ours} | {each.code for each in ours} <= mentioned("errors")


def test_every_reason_is_in_the_reference() -> None:
    assert {reason.value for reason in FireReason} <= mentioned("events")
    assert {reason.value for reason in RefusalReason} <= mentioned("events")


@pytest.mark.parametrize(
    "kind",
    [*get_args(events.Event), events.ItemTimes, Batch, Item, Statistics],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_an_event_is_in_the_reference(kind: type) -> None:
    assert {kind.__name__} | fields_of(kind) <= mentioned("events")


def test_every_public_name_is_in_some_document() -> None:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    missing = [name for name in headway.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_the_metaphor_is_told_once() -> None:
    telling = [path for path in DOCUMENTS if "between two departures" in path.read_text()]
    assert telling == [ROOT / "README.md"]
