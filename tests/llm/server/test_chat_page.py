"""`GET /chat` in a real browser: a person types, sends, reads, stops, and starts anew."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fragile_engine import PacedModel
from models import build
from serving import Serving, serving
from tool_models import build_with_tools

from browser import CHROMIUM, Browser, Page, browsing

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed"),
]
ARTICLES = "[...document.querySelectorAll('article')].map(each => each.className)"
IDLE = "document.getElementById('send').textContent === 'Send'"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = build("llama", tmp_path_factory.mktemp("page"))
    with serving(folder, PacedModel, server={"admin_without_key": True}) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as running:
        yield running


@pytest.fixture
def page(browser: Browser, served: Serving) -> Iterator[Page]:
    found = Page(browser, f"{served.url}/chat")
    found.wait_for("document.querySelectorAll('#model option').length === 1")
    found.run("document.getElementById('temperature').value = 0")
    yield found
    assert found.mistakes == []


def say(page: Page, text: str) -> None:
    page.run("document.getElementById('text').focus()")
    page.type_text(text)
    page.press_enter()


def test_an_answer_is_streamed_and_its_figures_are_shown(page: Page) -> None:
    assert page.run("document.getElementById('model').value") == "tiny"
    page.run("document.getElementById('most').value = 12")
    say(page, "Hello")
    page.wait_for(f"document.querySelectorAll('article').length === 2 && {IDLE}")
    assert page.run(ARTICLES) == ["user", "assistant"]
    figures = page.run("document.querySelector('article.assistant .figures').textContent")
    assert "tokens/s" in figures
    assert "answers in a batch" in figures
    assert page.run("document.querySelectorAll('.strip i').length") > 0
    say(page, "And then?")  # the chat goes on
    page.wait_for(f"document.querySelectorAll('article').length === 4 && {IDLE}")
    assert page.run("messages.map(each => each.role)") == ["user", "assistant"] * 2


def test_an_answer_can_be_stopped_and_its_blocks_are_free(page: Page, served: Serving) -> None:
    page.run("document.getElementById('most').value = 200")
    say(page, "Talk for long")
    page.wait_for("document.querySelector('article.assistant .figures') !== null")
    page.run("document.getElementById('form').requestSubmit()")  # the button says Stop
    page.wait_for(IDLE)
    assert page.run(ARTICLES) == ["user", "assistant"]  # and no error
    served.wait_idle()
    page.run("document.getElementById('new').click()")
    assert page.run("document.querySelectorAll('article').length") == 0


def test_what_the_server_refuses_is_shown(page: Page) -> None:
    page.run("document.getElementById('most').value = 100000")
    say(page, "Too much")
    page.wait_for("document.querySelector('article.error') !== null")
    shown = page.run("document.querySelector('article.error').textContent")
    assert "256" in shown


MARKDOWN = """# Head

Some **bold**, *soft* and `code`, a [link](https://example.org/) and a [trap](javascript:alert(1)).

- one
- two
  1. inner

> quoted

| a | b |
|---|---|
| 1 | 2 |

```html
<img src=x onerror="window.hurt = 1">
```
<script>window.hurt = 1</script><img src=x onerror="window.hurt = 1">"""


def test_markdown_is_shown_and_html_is_not(page: Page) -> None:
    page.run(f"document.getElementById('talk').append(...markdown({json.dumps(MARKDOWN)}))")
    tags = "[...document.querySelectorAll('#talk *')].map(each => each.tagName)"
    shown = set(page.run(tags))
    assert {"H1", "STRONG", "EM", "CODE", "A", "UL", "OL", "LI", "BLOCKQUOTE", "TABLE"} <= shown
    assert not shown & {"SCRIPT", "IMG"}
    assert page.run("[...document.querySelectorAll('#talk a')].map(each => each.href)") == [
        "https://example.org/"
    ]
    assert '<img src=x onerror="window.hurt = 1">' in page.run(
        "document.querySelector('#talk pre').textContent"
    )
    assert page.run("window.hurt") is None


@pytest.mark.parametrize(
    ("text", "look", "shown"),
    [
        ("[" * 20_000, "shown.textContent.length", 20_000),
        ("*a" * 20_000, "shown.textContent.replaceAll('*', '').length", 20_000),
        ("> " * 300, "shown.querySelectorAll('blockquote').length", 300),
        ("`" * 20_000, "shown.querySelectorAll('code').length", 1),
        ("  - a\n" * 3_000, "shown.querySelectorAll('li').length", 3_000),
    ],
)
def test_hostile_markdown_is_shown_whole(page: Page, text: str, look: str, shown: int) -> None:
    """One that takes for ever ends the browser."""
    blocks = f"shown.append(...markdown({json.dumps(text)}))"
    found = page.run(f"{{ const shown = document.createElement('div'); {blocks}; {look} }}")
    assert found == shown


def test_a_system_prompt_goes_first(page: Page) -> None:
    page.run("document.getElementById('system').value = 'Be short.'")
    page.run("stop = new AbortController(); messages = [{role: 'user', content: 'Hi'}]")
    said = page.run("JSON.parse(asked().body).messages")
    assert [each["role"] for each in said] == ["system", "user"]


def test_the_dashboard_shows_its_answers_and_tokens(
    page: Page, browser: Browser, served: Serving
) -> None:
    page.run("document.getElementById('most').value = 8")
    say(page, "Hello")
    page.wait_for(f"document.querySelectorAll('article').length === 2 && {IDLE}")
    served.wait_idle()
    shown = Page(browser, f"{served.url}/dashboard")
    shown.wait_for("document.getElementById('state').textContent === 'live'")
    shown.run("document.getElementById('span').value = 'Infinity'; draw()")
    found = re.search(
        r"^headway_generation_tokens_total{.*} (\d+)", httpx.get(f"{served.url}/metrics").text, re.M
    )
    assert found is not None
    tiles = shown.run("document.getElementById('tiles').textContent")
    assert f"{found[1]} tokens" in tiles
    assert "KV cache" in tiles
    kept = httpx.get(f"{served.url}/admin/explain").json()["answers"]
    assert shown.run("timetable.answers.map((each) => each.number)") == [
        each["number"] for each in kept
    ]
    shown.run("document.getElementById('timetable').focus()")
    shown.press("ArrowLeft", 37)
    told = shown.run("document.getElementById('batch').textContent")
    assert f"then {kept[-1]['tokens']} tokens" in told
    assert f"ended: {kept[-1]['code']}" in told
    assert shown.console_errors == []


def test_what_a_model_thinks_is_shown_apart_from_what_it_says(page: Page) -> None:
    delta = "{choices: [{delta: {%s}}]}"
    events = [
        delta % "reasoning_content: 'Hm.'",
        delta % "content: '**Yes**', reasoning_content: null",
    ]
    page.run("document.getElementById('most').value = 8")
    page.run(f"events = async function* () {{ yield* [{', '.join(events)}]; }}; send('Why?')")
    page.wait_for(f"document.querySelectorAll('article').length === 2 && {IDLE}")
    assert page.run("document.querySelector('.thinking p').textContent") == "Hm."
    assert page.run("document.querySelector('article.assistant strong').textContent") == "Yes"
    assert page.run("messages.at(-1).content") == "**Yes**"


TOOLS = """[{"type": "function", "function": {"name": "weather", "parameters":
{"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}}}]"""


def test_a_model_calls_a_tool_and_the_person_answers_for_it(
    browser: Browser, tmp_path: Path
) -> None:
    with serving(build_with_tools("hermes", tmp_path), max_context=4096) as served:
        page = Page(browser, f"{served.url}/chat")
        page.wait_for("document.querySelectorAll('#model option').length === 1")
        page.run("document.getElementById('tools').value = '[{'")
        say(page, "Hello")
        page.wait_for("document.querySelector('article.error') !== null")
        shown = page.run("document.querySelector('article.error').textContent")
        assert shown.startswith("The tools are not JSON")
        page.run("document.getElementById('new').click()")
        page.run(f"document.getElementById('tools').value = {json.dumps(TOOLS)}")
        # A model of random weights calls a tool only if it must.
        page.run("""const plain = asked; asked = () => {
            const found = plain(), body = JSON.parse(found.body);
            if (messages.length === 1)
                Object.assign(body, {tool_choice: "required", parallel_tool_calls: false});
            return {...found, body: JSON.stringify(body)};
        }""")
        say(page, "What is the weather?")
        page.wait_for(f"document.querySelectorAll('.call').length === 1 && {IDLE}")
        assert page.run("document.querySelector('.call span').textContent") == "calls weather"
        said = json.loads(page.run("document.querySelector('.call code').textContent"))
        assert said in ({"city": "Oslo"}, {"city": "Rome"})
        invitation = page.run("document.getElementById('text').placeholder")
        assert invitation.startswith("What weather answers")
        say(page, "Rain")
        page.wait_for(f"messages.length === 4 && {IDLE}")
        roles = page.run("messages.map(each => each.role)")
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert page.run("messages[1].tool_calls[0].id === messages[2].tool_call_id")
        assert page.mistakes == []
