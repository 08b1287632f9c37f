"""A real browser without a window: Chromium, told what to do over a pair of pipes."""

import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
MOST_S = 120.0


class Page:
    """One page. What it throws fails whoever asks it next."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._ids = itertools.count(1)
        self._held = b""
        self._session: str | None = None
        self.thrown: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._ask("Runtime.enable")
        self._ask("Page.enable")

    def open(self, url: str) -> None:
        self._ask("Page.navigate", url=url)

    def value_of(self, script: str) -> Any:
        """What the expression gives, in the page."""
        answer = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        assert not self.thrown, self.thrown
        return answer["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """The page itself waits, by its own clock of frames."""
        script = f"""new Promise(done => {{
            const look = () => ({condition}) ? done(true) : setTimeout(look, 20); look(); }})"""
        assert self.value_of(script) is True

    def type_text(self, text: str) -> None:
        """As a keyboard does, into whatever has the focus."""
        self._ask("Input.insertText", text=text)

    def press_enter(self) -> None:
        key: dict[str, Any] = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self._ask("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **key)

    def _ask(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        asked = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        ends_at = time.monotonic() + MOST_S
        while True:
            message = self._next(ends_at)
            if message.get("method") == "Runtime.exceptionThrown":
                self.thrown.append(json.dumps(message["params"]))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _next(self, ends_at: float) -> Any:
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._from], [], [], ends_at - time.monotonic())
            assert ready, "the browser does not answer"
            data = os.read(self._from, 65_536)
            assert data, "the browser has ended"
            self._held += data
        message, self._held = self._held.split(b"\0", 1)
        return json.loads(message)


@contextmanager
def page() -> Iterator[Page]:
    assert PROGRAM is not None
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    options = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The pipes must be its descriptors 3 and 4; not every shell knows numbers of two digits.
        command = f'exec "$0" {options} --remote-debugging-pipe "$@" 3<&{their_in} 4>&{their_out}'
        with subprocess.Popen(
            ["bash", "-c", command, PROGRAM, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as browser:
            os.close(their_in)
            os.close(their_out)
            try:
                yield Page(our_out, our_in)
            finally:
                os.close(our_out)
                os.close(our_in)
                browser.terminate()
                browser.wait(MOST_S)
