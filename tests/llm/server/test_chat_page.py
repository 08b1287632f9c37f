"""`GET /chat` in a real browser: a person types, sends, reads, stops, and starts anew."""

from collections.abc import Iterator

import browser
import pytest
from fragile_engine import PacedModel
from models import build
from serving import Serving, serving

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium is installed"),
]
ARTICLES = "[...document.querySelectorAll('article')].map(each => each.className)"
IDLE = "document.getElementById('send').textContent === 'Send'"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = build("llama", tmp_path_factory.mktemp("page"))
    with serving(folder, PacedModel) as found:
        yield found


@pytest.fixture
def page(served: Serving) -> Iterator[browser.Page]:
    with browser.page() as found:
        found.open(f"{served.url}/chat")
        found.wait_until("document.querySelectorAll('#model option').length === 1")
        found.value_of("document.getElementById('temperature').value = 0")
        yield found


def say(page: browser.Page, text: str) -> None:
    page.value_of("document.getElementById('text').focus()")
    page.type_text(text)
    page.press_enter()


def test_an_answer_is_streamed_and_its_figures_are_shown(page: browser.Page) -> None:
    assert page.value_of("document.getElementById('model').value") == "tiny"
    page.value_of("document.getElementById('most').value = 12")
    say(page, "Hello")
    page.wait_until(f"document.querySelectorAll('article').length === 2 && {IDLE}")
    assert page.value_of(ARTICLES) == ["user", "assistant"]
    figures = page.value_of("document.querySelector('article.assistant .figures').textContent")
    assert "tokens/s" in figures
    assert "answers in a batch" in figures
    assert page.value_of("document.querySelectorAll('.strip i').length") > 0
    say(page, "And then?")  # the chat goes on
    page.wait_until(f"document.querySelectorAll('article').length === 4 && {IDLE}")
    assert page.value_of("messages.map(each => each.role)") == ["user", "assistant"] * 2


def test_an_answer_can_be_stopped_and_its_blocks_are_free(
    page: browser.Page, served: Serving
) -> None:
    page.value_of("document.getElementById('most').value = 200")
    say(page, "Talk for long")
    page.wait_until("document.querySelector('article.assistant .figures') !== null")
    page.value_of("document.getElementById('form').requestSubmit()")  # the button says Stop
    page.wait_until(IDLE)
    assert page.value_of(ARTICLES) == ["user", "assistant"]  # and no error
    served.wait_idle()
    page.value_of("document.getElementById('new').click()")
    assert page.value_of("document.querySelectorAll('article').length") == 0


def test_what_the_server_refuses_is_shown(page: browser.Page) -> None:
    page.value_of("document.getElementById('most').value = 100000")
    say(page, "Too much")
    page.wait_until("document.querySelector('article.error') !== null")
    shown = page.value_of("document.querySelector('article.error').textContent")
    assert "256" in shown
