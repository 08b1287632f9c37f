"""Draw the pictures of the guides, from real pages of a real server in a real browser:

    python docs/pictures/draw.py           everything
    python docs/pictures/draw.py figures   bench, profile and tune: on a quiet machine, no browser

The pages take Chromium (Debian: chromium). The chat's takes the language model, too: run it with an
environment that has `headway[llm]`, after `headway models get chat`.
"""

import http.client
import importlib.util
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "integration")]

from real_server import served  # noqa: E402

from browser import Browser, Page, browsing  # noqa: E402

MOST_BYTES = 150 * 1024
NOT_VALID = 3
RATE_PER_S, LOADED_S = 260.0, 14.0
WORDS = (2, 4, 9, 20, 60, 150)
DRAWN = "document.getElementById('state').textContent === 'live'"
CHOSEN = (
    "timetable.select(timetable.shown().batches.reduce((one, other) => "
    "other.rows > one.rows ? other : one)); 1"
)
QUESTION = "List three fruits and three colours as Markdown, each with a few words."


@contextmanager
def load(port: int) -> Iterator[None]:
    """Texts of many lengths, as strangers send them, until the block ends."""
    stop = threading.Event()

    def send(model: str, seed: int) -> None:
        dice = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while not stop.wait(dice.expovariate(RATE_PER_S / 48)):
            text = json.dumps(" ".join(["word"] * dice.choice(WORDS)))
            connection.request("POST", f"/v1/predict/{model}", text)
            connection.getresponse().read()

    models = ["embed", "embed", "rank"] * 16
    threads = [
        threading.Thread(target=send, args=each) for each in zip(models, range(48), strict=True)
    ]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in threads:
            each.join()


def say(line: str) -> None:
    sys.stderr.write(line + "\n")


def keep(page: Page, name: str) -> None:
    picture = page.picture("webp")
    assert len(picture) <= MOST_BYTES, (name, len(picture))
    (HERE / f"{name}.webp").write_bytes(picture)
    say(f"{name}.webp: {len(picture) / 1024:.0f} KiB")


def draw_dashboard(browser: Browser) -> None:
    with served(HERE, "headway.toml") as server, load(server.port):
        page = Page(browser, f"{server.url}/dashboard")
        page.look_like(width=1280, height=900)
        page.wait_for(DRAWN)
        time.sleep(LOADED_S)
        page.run(f"document.getElementById('pause').click(); {CHOSEN}")
        page.wait_for("document.querySelector('#batch table')")
        keep(page, "dashboard")
        page.look_like(width=1280, height=900, scheme="dark")
        page.run("timetable.draw(); document.getElementById('batch').hidden = true")
        page.run("document.getElementById('if-max_batch_size').value = 2")
        page.run("showChoices(); simulate()")
        page.wait_for("document.querySelectorAll('#if tbody tr').length === 3")
        page.run("document.getElementById('charts').scrollIntoView(); 1")
        keep(page, "dashboard-dark")
        page.look_like(width=390, height=844, scheme="dark")
        page.run("document.getElementById('batch').hidden = true; timetable.draw(); scrollTo(0, 0)")
        keep(page, "dashboard-phone")


def draw_chat(browser: Browser) -> None:
    with served(HERE, "chat", "--port", "0", "--grpc-port", "-1") as server:
        page = Page(browser, f"{server.url}/chat")
        page.look_like(width=900, height=700)
        page.wait_for("document.querySelectorAll('#model option').length === 1")
        page.run("document.getElementById('most').value = 120; scrollTo(0, 0)")
        page.run("document.getElementById('temperature').value = 0")
        page.run("document.getElementById('text').focus()")
        page.type_text(QUESTION)
        page.press_enter()
        page.wait_for("document.querySelector('article.assistant > button') !== null")
        keep(page, "chat")


def draw_figures() -> None:
    """What `bench`, `profile` and `tune` draw themselves."""
    samples = HERE / "samples.jsonl"
    samples.write_text("\n".join(json.dumps(" ".join(["word"] * count)) for count in WORDS))
    embed, rank = (f"{HERE / 'served.py'}:{name}" for name in ("Embed", "Rank"))
    try:
        with served(HERE, "headway.toml") as server:
            load = ("--model", "rank", "--data", '"word"', "--rate", "150:1350:150")
            headway("bench", server.url, *load, "--seconds", "4", name="bench")
        headway("profile", embed, "--samples", str(samples), name="profile")
        headway("tune", rank, "--rate", "300", "--no-verify", name="tune")
    finally:
        samples.unlink()


def headway(*arguments: str, name: str) -> None:
    path = HERE / f"{name}.png"
    command = [sys.executable, "-m", "headway", *arguments, "--plot", str(path)]
    code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    if code == NOT_VALID:  # a picture all the same
        say(f"{path.name}: the machine was busy; draw it again where nothing else runs")
    elif code:
        raise SystemExit(code)
    assert path.stat().st_size <= MOST_BYTES, (name, path.stat().st_size)
    say(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    draw_figures()
    if sys.argv[1:] == ["figures"]:
        return
    with browsing() as browser:
        draw_dashboard(browser)
    if importlib.util.find_spec("torch") is None:
        say("no picture of the chat: this environment has no torch")
        return
    with browsing() as browser:
        draw_chat(browser)


if __name__ == "__main__":
    main()
