"""A headless Chromium, told what to do over its own debugging pipe: no driver, no package."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MOST_S = 60.0  # after that the browser is ended, and whoever reads from it is told
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


class Page:
    """One page in one browser."""

    def __init__(self, browser: "Browser", url: str) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str = attached["sessionId"]
        self._call("Runtime.enable")
        self._call("Page.enable")
        self._call("Log.enable")
        self._call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """What an expression of JavaScript gives; a promise is waited for."""
        given = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in given, given["exceptionDetails"]
        return given["result"].get("value")

    def wait_for(self, condition: str) -> Any:
        """Until an expression is true; its value."""
        return self.run(
            "new Promise((found) => { const look = () => { const value = "
            f"document.readyState === 'complete' && ({condition}); "
            "value ? found(value) : setTimeout(look, 20); }; look(); })"
        )

    def type_text(self, text: str) -> None:
        """As a keyboard does, into whatever has the focus."""
        self._call("Input.insertText", text=text)

    def press_enter(self) -> None:
        self.press("Enter", 13, text="\r")

    def press(self, name: str, code: int, **more: Any) -> None:
        key: dict[str, Any] = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self._call("Input.dispatchKeyEvent", type="keyDown", **more, **key)
        self._call("Input.dispatchKeyEvent", type="keyUp", **key)

    def unnamed(self) -> list[str]:
        """The controls and pictures that a screen reader has no name for: their roles."""
        tree = self._call("Accessibility.getFullAXTree")["nodes"]
        wanted = ("button", "combobox", "textbox", "searchbox", "spinbutton", "slider", "image")
        return [
            node["role"]["value"]
            for node in tree
            if node.get("role", {}).get("value") in wanted and not node.get("ignored")
            if not node.get("name", {}).get("value")
        ]

    @property
    def mistakes(self) -> list[Any]:
        """What its scripts have raised."""
        return [
            each["params"]
            for each in self._browser.events
            if each["method"] == "Runtime.exceptionThrown"
        ]

    @property
    def console_errors(self) -> list[str]:
        """What it has raised, and what its browser says of requests that went wrong."""
        entries = [
            each["params"]["entry"]
            for each in self._browser.events
            if each["method"] == "Log.entryAdded" and each.get("sessionId") == self._session
        ]
        said = [each["text"] for each in entries if each["level"] == "error"]
        return said + [str(each) for each in self.mistakes]

    def look_like(self, *, width: int, height: int, scheme: str = "light") -> None:
        """As on a screen of this size, whose owner likes it `light` or `dark`."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        liked = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=liked)

    def picture(self, kind: str = "png") -> bytes:
        """What it looks like now."""
        return base64.b64decode(self._call("Page.captureScreenshot", format=kind)["data"])

    def _call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, session=self._session, **parameters)


class Browser:
    def __init__(self, profile: str) -> None:
        theirs, ours = os.pipe(), os.pipe()
        command = f'exec "$0" "$@" 3<&{theirs[0]} 4>&{ours[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, *FLAGS, "--remote-debugging-pipe",
             f"--user-data-dir={profile}"],
            pass_fds=(theirs[0], ours[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs[0])
        os.close(ours[1])
        self._write, self._read = os.fdopen(theirs[1], "wb", 0), os.fdopen(ours[0], "rb")
        self._left, self._number = b"", 0
        self._guard = threading.Timer(MOST_S, self._process.kill)
        self._guard.start()
        self.events: list[Any] = []

    def call(self, method: str, *, session: str = "", **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            told = self._receive()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            self.events.append(told)

    def _receive(self) -> Any:
        while b"\0" not in self._left:
            more = os.read(self._read.fileno(), 2**16)
            assert more, "the browser has ended"
            self._left += more
        text, _, self._left = self._left.partition(b"\0")
        return json.loads(text)

    def close(self) -> None:
        self._guard.cancel()
        self._process.terminate()
        self._process.wait()
        self._write.close()
        self._read.close()


@contextmanager
def browsing() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            yield browser
        finally:
            browser.close()
