"""Routes, and what becomes of an error. It knows no sockets: every HTTP stack hands it requests."""

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from headway.config import MAX_BODY_BYTES, MAX_JSON_BYTES
from headway.errors import HeadwayError
from headway.observe.tally import ErrorTally
from headway.runtime.calling.threads import current_client
from headway.server.auth.access import Access
from headway.server.auth.keys import NOBODY, Caller, KeyRing
from headway.server.bodies.encoding import decompress_body
from headway.server.bodies.own_headers import has_options
from headway.server.families.openai.unserved_routes import why_unserved
from headway.server.service.errors import headers_of, param_of, status_of, tell
from headway.server.service.routes import ErrorFormat, Route
from headway.wire.application import Rejection, Start
from headway.wire.body_room import BodyRoom
from headway.wire.compression import compress_answer
from headway.wire.headers import WireHeaders
from headway.wire.messages import Answer, Asker, ErrorResponse, Headers, Pending, Request, Response
from headway.wire.own_cancellation import is_asked_to_stop

Handle: TypeAlias = Callable[[Request], Coroutine[Any, Any, Answer]]
Direct: TypeAlias = Callable[[bytes, dict[bytes, bytes]], Start | None]
Layer: TypeAlias = Callable[[Handle], Handle]
# Of paths: a client that makes names up costs no more than this.
_MOST_REMEMBERED = 4096
_LONGEST_REMEMBERED = 256  # characters


class FoundRoute(NamedTuple):
    route: Route
    params: Mapping[str, str]


class _Template(NamedTuple):
    text: str
    pattern: re.Pattern[str]
    routes: dict[str, Route]  # by method

    @property
    def rank(self) -> tuple[int, int]:
        """The order of routes: fewer placeholders first, then the longer text: `/a/{b}:run` before
        `/a/{b}`."""
        return self.text.count("{"), -len(self.text)


class App:
    """Finds the handler of a request and turns its result or error into an answer."""

    handle: Handle  # answers a request; raises nothing but the caller's own cancellation
    direct: Direct  # how to begin a POST with this head; None if it uses an optional feature

    def __init__(
        self,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_json_bytes: int = MAX_JSON_BYTES,
        debug: bool = False,
        errors: ErrorTally | None = None,
        room: BodyRoom | None = None,
        keys: KeyRing | None = None,
    ) -> None:
        """`room`: for unpacked bodies; None: no limit. `keys`: those that
        callers have; None: no caller needs one."""
        self._keys = keys
        self._max_body_bytes = max_body_bytes
        self._max_json_bytes = max_json_bytes
        self._room = room
        self._debug = debug
        self.errors = errors or ErrorTally("http")
        self._exact: dict[str, dict[str, Route]] = {}
        self._templates: list[_Template] = []
        self._found: dict[tuple[str, str], FoundRoute] = {}
        self._found_direct: dict[bytes, FoundRoute | None] = {}
        self.handle, self.direct = self._handle, self._direct

    def wrap(
        self, layer: Layer, *, may_pass: Callable[[dict[bytes, bytes]], bool] = lambda _: True
    ) -> None:
        """Have every request go through this layer before those that are there. `may_pass`: whether
        the direct path may go past it, by the request's headers."""
        direct = self.direct
        self.handle = layer(self.handle)
        self.direct = lambda url, headers: direct(url, headers) if may_pass(headers) else None

    def add(self, *routes: Route) -> None:
        for route in routes:
            self._routes_of(route.template)[route.method] = route
        self._found.clear()
        self._found_direct.clear()

    def _direct(self, url: bytes, headers: dict[bytes, bytes]) -> Start | None:
        """The hot path: no Request, no task, no future."""
        try:
            found = self._found_direct[url]
        except KeyError:
            found = self._find_direct(url)
        if found is None or has_options(headers):
            return None
        route, params = found
        direct = route.direct
        if direct is None or (route.is_direct is not None and not route.is_direct(headers)):
            return None
        keys, access = self._keys, route.access
        tenant = headers.get(b"headway-tenant", b"").decode("latin-1")

        def start(body: bytes, asker: Asker) -> Pending | None:
            if keys is None:
                return direct(body, asker, None, tenant, **params)
            try:
                caller = _admitted(keys, WireHeaders(headers), access)
            except HeadwayError:
                return None
            return direct(body, asker, caller, "", **params)

        return start

    def reject_head(self, headers: Mapping[str, str]) -> Rejection | None:
        """A client without a key is refused before its long body is read."""
        if self._keys is None:
            return None
        try:
            _admitted(self._keys, headers, Access.READ)
        except HeadwayError as error:
            return Rejection(status_of(error).http, error.code, str(error), headers_of(error))
        return None

    def note_error(self, code: str) -> None:
        self.errors.count(code)

    def template_of(self, request: Request) -> str:
        """The template of the route that answers this request; empty if none does."""
        found = self._found.get((request.method, request.path)) or self._look_up(request)
        return found.route.template if isinstance(found, FoundRoute) else ""

    @property
    def routes(self) -> list[Route]:
        tables = (*self._exact.values(), *(each.routes for each in self._templates))
        return [route for routes in tables for route in routes.values()]

    @property
    def paths_remembered(self) -> int:
        return len(self._found)

    async def _handle(self, request: Request) -> Answer:
        current_client.set(request.client)
        request.max_json_bytes = self._max_json_bytes
        found = self._found.get((request.method, request.path)) or self._find(request)
        if isinstance(found, Response):
            return found
        try:
            if self._keys is not None:
                request.caller = caller = _admitted(self._keys, request.headers, found.route.access)
                if caller is NOBODY:
                    request.body = b""  # nothing is unpacked for an unknown caller
                else:
                    current_client.set(caller.key.tenant)
            if "content-encoding" in request.headers:
                answer = await self._answer_packed(request, found)
            else:
                answer = await found.route.handler(request, **found.params)
            if (
                found.route.may_compress
                and "accept-encoding" in request.headers
                and isinstance(answer, Response)
            ):
                await compress_answer(request, answer)
            return answer
        except BaseException as error:
            if is_asked_to_stop(error):
                raise
            return self.answer_error(request, error)

    async def _answer_packed(self, request: Request, found: FoundRoute) -> Answer:
        await decompress_body(request, limit=self._max_body_bytes)
        if self._room is None:
            return await found.route.handler(request, **found.params)
        with self._room.taken(len(request.body)):  # a small body may be a large one, packed
            return await found.route.handler(request, **found.params)

    def answer_error(self, request: Request, error: BaseException) -> Response:
        """The error's answer, in the form of its route."""
        report = tell(error, self.errors, debug=self._debug, path=request.path, id=request.id)
        found = self._found.get((request.method, request.path))
        errors = self._errors_of(request.path) if found is None else found.route.errors
        return errors.refusal(
            report.status.http,
            report.message,
            code=report.code,
            param=param_of(report.error),
            headers=headers_of(report.error),
        )

    def refuse(
        self, path: str, status: int, message: str, *, code: str, headers: Headers = ()
    ) -> ErrorResponse:
        """A request that comes to no handler."""
        return self._errors_of(path).refusal(status, message, code=code, headers=headers)

    def _errors_of(self, path: str) -> ErrorFormat:
        """How errors are written on this path. An unknown `/v1/` path is taken for OpenAI's."""
        for routes, _ in self._candidates(path):
            return next(iter(routes.values())).errors
        return ErrorFormat.OPENAI if path.startswith("/v1/") else ErrorFormat.TEXT

    def _routes_of(self, template: str) -> dict[str, Route]:
        if "{" not in template:
            return self._exact.setdefault(template, {})
        for known in self._templates:
            if known.text == template:
                return known.routes
        new = _Template(template, _compile(template), {})
        self._templates = sorted([*self._templates, new], key=lambda each: each.rank)
        return new.routes

    def _find(self, request: Request) -> FoundRoute | Response:
        """The request's route, or the reason why there is none."""
        allowed = self._look_up(request)
        if isinstance(allowed, FoundRoute):
            return allowed
        if not allowed:
            self.errors.count("not_found")
            message = why_unserved(request.path) or "Not Found; /docs lists the routes"
            return self.refuse(request.path, 404, message, code="not_found")
        if "GET" in allowed:
            allowed.add("HEAD")
        headers = (("Allow", ", ".join(sorted(allowed))),)
        self.errors.count("method_not_allowed")
        return self.refuse(
            request.path,
            405,
            f"Method Not Allowed; this route takes {' or '.join(sorted(allowed))}",
            code="method_not_allowed",
            headers=headers,
        )

    def _look_up(self, request: Request) -> FoundRoute | set[str]:
        """The methods that there are, where it is not this one: of the template that fits best."""
        allowed: set[str] = set()
        for routes, params in self._candidates(request.path):
            route = routes.get(request.method)
            if route is None and request.method == "HEAD":
                route = routes.get("GET")
            if route is not None:
                return self._remember(request, FoundRoute(route, params))
            allowed = allowed or set(routes)
        return allowed

    def _find_direct(self, url: bytes) -> FoundRoute | None:
        if len(url) > _LONGEST_REMEMBERED:
            return None
        if len(self._found_direct) >= _MOST_REMEMBERED:
            self._found_direct.clear()
        found = self._look_up(Request("POST", url.decode("latin-1"), "", {}, b"", ""))
        is_direct = isinstance(found, FoundRoute) and found.route.direct is not None
        self._found_direct[url] = found if is_direct else None  # type: ignore[assignment]
        return self._found_direct[url]

    def _candidates(self, path: str) -> list[tuple[dict[str, Route], dict[str, str]]]:
        plain = path.rstrip("/") or "/"  # a trailing slash is forgiven
        candidates: list[tuple[dict[str, Route], dict[str, str]]] = []
        exact = self._exact.get(plain)
        if exact is not None:
            candidates.append((exact, {}))
        for template in self._templates:
            match = template.pattern.fullmatch(plain)
            if match is not None:
                params = {name: unquote(value) for name, value in match.groupdict().items()}
                candidates.append((template.routes, params))
        return candidates

    def _remember(self, request: Request, found: FoundRoute) -> FoundRoute:
        if len(request.path) > _LONGEST_REMEMBERED:
            return found
        if len(self._found) >= _MOST_REMEMBERED:
            self._found.clear()
        self._found[request.method, request.path] = found
        return found


def _admitted(keys: KeyRing, headers: Mapping[str, str], access: Access) -> Caller:
    """The one check of a key. Raises Unauthenticated, Forbidden."""
    caller = keys.find(headers)
    caller.check(access)
    return caller


def _compile(template: str) -> re.Pattern[str]:
    literal_or_name = re.split(r"\{(\w+)\}", template)
    parts = [
        f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part)
        for index, part in enumerate(literal_or_name)
    ]
    return re.compile("".join(parts))
