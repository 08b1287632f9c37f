"""The page of /docs in a real browser: its script runs, and what it offers works."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_server import Server, served

from browser import CHROMIUM, Browser, Page, browsing
from headway.server.auth.keys import hash_of

pytestmark = pytest.mark.slow
if not CHROMIUM:
    pytest.skip("there is no Chromium here (Debian: chromium)", allow_module_level=True)

SECRET = "hw-a-secret-of-some-length"
PORTS = ("--port", "0", "--grpc-port", "-1")
SHOUT = """
def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]
"""
SPELL = """
import headway

class Spell(headway.Model):
    def stream(self, items: list[str]):
        for step in range(max(map(len, items)) + 1):
            yield [item[step] if step < len(item) else headway.END for item in items]
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as running:
        yield running


@pytest.fixture
def shout(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "shout.py").write_text(SHOUT)
    with served(tmp_path, "shout.py", *PORTS) as server:
        yield server


def opened(page: Page, model: str) -> None:
    """As a person does: the model's link, then its route."""
    page.wait_for("document.querySelector('#models a')")
    page.run(
        f"[...document.querySelectorAll('#models a')].find((a) => a.text === {model!r}).click()"
    )
    page.wait_for("document.querySelector('details[open] button.send')")


def sent(page: Page, body: str) -> tuple[str, str]:
    """The status and the answer that are shown."""
    page.run(
        "{ const area = document.querySelector('details[open] textarea'); "
        f"area.value = {body!r}; area.dispatchEvent(new Event('input', {{bubbles: true}})); "
        "document.querySelector('details[open] button.send').click(); }"
    )
    status = page.wait_for(
        "(document.querySelector('details[open] .row .status').textContent.match(/.* ms.*/) "
        "|| [null])[0]"
    )
    return status, page.run("document.querySelector('details[open] .row + pre').textContent")


def test_it_shows_what_is_served_and_sends_to_it(browser: Browser, shout: Server) -> None:
    page = Page(browser, f"{shout.url}/docs")
    opened(page, "shout")
    assert page.run("document.getElementById('models').textContent") == "Serving shout"
    status, answer = sent(page, '"hello"')
    assert status.startswith("200 OK")
    assert answer == '"HELLO"'
    status, answer = sent(page, "5")
    assert status.startswith("400 Bad Request")
    assert "Expected `str`, got `int`" in answer
    assert page.mistakes == []


def test_its_line_for_a_shell_works(browser: Browser, shout: Server) -> None:
    page = Page(browser, f"{shout.url}/docs")
    opened(page, "shout")
    sent(page, '"it\'s"')
    line = page.run(
        "[...document.querySelectorAll('details[open] pre')].map((each) => each.textContent)"
        ".find((text) => text.startsWith('curl '))"
    )
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '"IT\'S"'


def test_routes_that_no_model_answers_are_hidden_until_asked_for(
    browser: Browser, shout: Server
) -> None:
    page = Page(browser, f"{shout.url}/docs")
    page.wait_for("!document.getElementById('others').hidden")
    shown = (
        "[...document.querySelectorAll('section > details')].filter((each) => "
        "each.offsetParent !== null).map((each) => each.querySelector('.path').textContent)"
    )
    assert "/v1/embeddings" not in page.run(shown)
    page.run("document.getElementById('show').click()")
    assert "/v1/embeddings" in page.run(shown)
    page.run(
        "{ const filter = document.getElementById('filter'); filter.value = 'predict/shout'; "
        "filter.dispatchEvent(new Event('input')); }"
    )
    assert set(page.run(shown)) == {"/v1/predict/shout", "/v1/predict/shout/batch"}
    assert page.mistakes == []


def test_a_stream_is_shown(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "spell.py").write_text(SPELL)
    with served(tmp_path, "spell.py", *PORTS) as server:
        page = Page(browser, f"{server.url}/docs")
        opened(page, "spell")
        status, answer = sent(page, '"abc"')
    assert status.startswith("200 OK")
    assert answer.split() == ["data:", '"a"', "data:", '"b"', "data:", '"c"']
    assert page.mistakes == []


def test_a_key_is_asked_for_and_stays_out_of_the_line_for_a_shell(
    browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "shout.py").write_text(SHOUT)
    keys = f"acme={hash_of(SECRET)}"
    with served(tmp_path, "shout.py", *PORTS, HEADWAY_API_KEYS=keys) as server:
        page = Page(browser, f"{server.url}/docs")
        page.wait_for("!document.getElementById('door').hidden")
        for key in ("wrong", SECRET):
            page.run(
                f"{{ document.getElementById('key').value = {key!r}; "
                "document.getElementById('door').requestSubmit(); }"
            )
            if key == "wrong":
                page.wait_for(
                    "document.getElementById('refused').textContent === 'this key is not known'"
                )
        opened(page, "shout")
        status, answer = sent(page, '"hello"')
        text = page.run("document.querySelector('details[open]').textContent")
    assert (status[:6], answer) == ("200 OK", '"HELLO"')
    assert "$HEADWAY_KEY" in text
    assert SECRET not in text


def test_the_first_page_shows_what_is_served_and_leads_to_the_others(
    browser: Browser, shout: Server
) -> None:
    page = Page(browser, f"{shout.url}/")
    page.wait_for("!document.getElementById('models').hidden")
    assert page.run("document.getElementById('state').textContent") == "Ready."
    assert page.run("document.querySelector('#models tbody').textContent") == (
        "shout/v1/predict/shout"
    )
    assert page.run("document.getElementById('chat').hidden")  # it serves no chats
    page = Page(browser, page.run("document.querySelector('#models a').href"))
    page.wait_for("document.querySelector('details[open] button.send')")
    current = "document.querySelector('nav [aria-current]').textContent"
    assert page.run(current) == "Routes"
    assert page.mistakes == []


def test_a_script_that_gets_into_a_page_does_not_run(browser: Browser, shout: Server) -> None:
    page = Page(browser, f"{shout.url}/docs")
    page.wait_for("document.querySelector('#models a')")
    page.run(
        "{ const script = document.createElement('script'); script.textContent = 'got = 1'; "
        "document.body.append(script); }"
    )
    assert page.run("typeof got") == "undefined"


EMBED = """
def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]
"""


def test_the_chat_says_where_no_model_takes_chats(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "embed.py").write_text(EMBED)
    with served(tmp_path, "embed.py", *PORTS) as server:
        page = Page(browser, f"{server.url}/chat")
        page.wait_for("document.querySelector('article.error')")
        told = page.run("document.querySelector('article.error').textContent")
    assert told.startswith("No model here takes chats: embed.")
    assert page.run("document.getElementById('send').disabled")
    assert page.console_errors == []
