"""A page, put together of the frame and the look that all pages share and of what is its own.

Its browser runs the very script and style that are in it, by their digests, and nothing else.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from headway.wire.messages import Response

_POLICY = (
    "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page:
    """Says nothing of the models: what it shows it asks for, with a key."""

    def __init__(self, name: str, title: str, *, parts: Sequence[str] = ()) -> None:
        """`name`: of its link and its files, which may be absent. `parts`: of its script."""
        style = _text("look.css") + _text(f"{name}.css")
        script = "".join(_text(f"{each}.js") for each in ("common", *parts, name))
        filled = {"title": title, "style": style, "script": script, "body": _text(f"{name}.html")}
        page = _text("frame.html").replace(f'data-name="{name}"', 'aria-current="page"')
        for part, text in filled.items():
            page = page.replace(f"<!-- {part} -->", text)
        self._body = page.encode()
        policy = _POLICY.format(style=_digest(style), script=_digest(script))
        self._headers = (("Content-Security-Policy", policy), ("Cache-Control", "no-cache"))

    def answer(self) -> Response:
        return Response(self._body, content_type="text/html; charset=utf-8", headers=self._headers)


def _text(name: str) -> str:
    found = resources.files(__package__).joinpath(name)
    return found.read_text("utf-8") if found.is_file() else ""


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
