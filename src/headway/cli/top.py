"""`headway top`: what a server does just now, in a terminal."""

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headway.cli.commands import Commands
from headway.cli.readings import FIRST_TOKEN, LATENCY, Reading, Span, read, spans_of
from headway.cli.server_flags import add_server, server_of
from headway.errors import ConfigError
from headway.lab.columns import aligned
from headway.loadgen.asking import NoAnswer, RemoteServer, as_expected, printable

_CLEAR, _HOME, _REST = "\x1b[2J", "\x1b[H", "\x1b[J"
_MOST_BATCHES = 200
_FOR_OPERATORS = (
    "Only an operator sees the last batches: with --api-key and a key that has the right admin, or,"
    " on a server without keys, if it was started with --admin-without-key"
)
_HEAD = (
    *("MODEL", "STATE", "ITEMS/S", "P50", "P99", "SLO", "IN TIME", "QUEUED", "WORK", "BATCHES/S"),
    *("ROWS", "PADDING", "REFUSED", "MAX ROWS", "MAX WAIT", "BUSY"),
)
_LANGUAGE = (
    *("LANGUAGE MODEL", "TOKENS/S", "FIRST P50", "FIRST P99", "RUNNING", "WAITING", "KV CACHE"),
    *("CACHED", "PREEMPTED"),
)


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "top",
        usage="%(prog)s [URL] [options]",
        help="what a server does just now",
        description="Shows a running server's models, once a second: items, percentiles, queues, "
        "batches and why they left. Takes a key with the right `metrics`; with `admin`, or on a "
        "server that was started with --admin-without-key, it also shows the last batches. "
        "The same as a page: /dashboard.",
    )
    parser.add_argument(
        "--every",
        type=float,
        default=1.0,
        metavar="S",
        help="seconds between two looks; default: 1",
    )
    parser.add_argument(
        "--count", type=int, default=0, metavar="N", help="end after N looks; default: at Ctrl-C"
    )
    add_server(parser, right="with the right `metrics`, or `admin` for the batches too")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if not 0.1 <= arguments.every <= 3600 or arguments.count < 0:
        raise ConfigError("--every is 0.1 to 3600 seconds, --count is 0 or more")
    watch = Watch(server_of(arguments))
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        print(_CLEAR, end="")
    watch.look()
    shown = 0
    while not arguments.count or shown < arguments.count:
        time.sleep(arguments.every)
        watch.look()
        show(watch.frame(), is_terminal=is_terminal)
        shown += 1
    return 1 if watch.trouble and watch.reading is None else 0


def show(lines: Sequence[str], *, is_terminal: bool) -> None:
    if not is_terminal:
        print("\n".join(lines), flush=True)
        return
    size = shutil.get_terminal_size()
    cut = [line[: size.columns] + "\x1b[K" for line in lines[: size.lines - 1]]
    print(_HOME + "\n".join(cut) + _REST, flush=True)


class Watch:
    """Asks one server, and keeps what the next frame is made of."""

    def __init__(self, server: RemoteServer) -> None:
        self._server = server
        self._since = 0
        self.reading: Reading | None = None
        self._before: Reading | None = None
        self._batches: list[str] = []  # a line for each
        self._incidents: list[str] = []
        self._states: dict[str, str] = {}
        self.trouble = ""  # why there are no figures
        self._denied = ""  # why there are no batches

    def look(self) -> None:
        try:
            found = self._figures()
        except (NoAnswer, ConfigError) as error:
            self.trouble, self.reading = str(error), None
            self._forget_batches()
            return
        self.trouble = ""
        self._before, self.reading = self.reading, found
        try:
            self._look_at_batches()
            self._denied = ""
        except (NoAnswer, ConfigError) as error:
            is_right = isinstance(error, ConfigError) and error.field == "--api-key"
            self._denied = _FOR_OPERATORS if is_right else f"no batches are shown: {error}"

    def _figures(self) -> Reading:
        path = "/metrics"
        answer = self._server.ask("GET", path)
        if answer.status != 200:
            raise self._server.refusal(path, answer)
        with as_expected(self._server.url):
            found = read(answer.body.decode(errors="replace"), time.monotonic())
        if not found.server:
            raise ConfigError(f"{self._server.url} is no Headway: its {path} is something else")
        return found

    def _forget_batches(self) -> None:
        self._since, self._batches, self._incidents = 0, [], []

    def _look_at_batches(self) -> None:
        asked = {"since": self._since, "limit": _MOST_BATCHES, "items": "false"}
        found = self._server.json("/admin/explain", has="batches", **asked)
        with as_expected(self._server.url):
            if found["next"] < self._since:  # it was started again
                self._forget_batches()
                return
            batches = [_batch_line(each) for each in found["batches"]]
            incidents = [_incident_line(each) for each in found["incidents"]]
            self._since = found["next"]
            self._batches = [*self._batches, *batches][-_MOST_BATCHES:]
            self._incidents = [*self._incidents, *incidents][-5:]
            models = self._server.json("/admin/models", has="models")["models"]
            self._states = {
                f"{each['name']} {each['version']}": str(each["state"]) for each in models
            }

    def frame(self) -> list[str]:
        at = time.strftime("%H:%M:%S")
        url = self._server.url
        if self.reading is None or self._before is None:
            why = self.trouble or "the first ones come with the next look"
            return [f"headway top  {url}  {at}", "", _one_line(f"no figures: {why}")]
        server, spans = self.reading.server, spans_of(self.reading, self._before)
        memory = server.get("process_resident_memory_bytes")
        lines = [
            f"headway top  {url}  {at}",
            f"load {_share(server.get('headway_load_utilization'))}   memory {_bytes(memory)}   "
            f"queued {_number(server.get('headway_load_queued_requests'))}   "
            f"running {_number(server.get('headway_load_running_requests'))}",
            "",
        ]
        items = {name: span for name, span in spans.items() if not _is_language(span)}
        if items:
            lines += [*aligned([_HEAD, *(self._row(*each) for each in items.items())]), ""]
        language = {name: span for name, span in spans.items() if _is_language(span)}
        if language:
            rows = [_language_row(*each) for each in language.items()]
            lines += [*aligned([_LANGUAGE, *rows]), ""]
        if "-" in " ".join(lines[3:]).split():
            lines += ["-: nothing of it since the last look, or not set", ""]
        if items:
            lines += [f"batches left: {_reasons(spans.values())}", ""]
        return [_one_line(each) for each in [*lines, *self._last()]]

    def _row(self, name: str, span: Span) -> list[str]:
        judged = span.total("headway_slo_items_total")
        in_time = span.count("headway_slo_items_total|in_time")
        batches = span.total("headway_batch_rows_count")
        busy, idle, away = (
            span.gauge(f"headway_workers|{state}") or 0.0 for state in ("busy", "idle", "away")
        )
        ready = "ready" if span.gauge("headway_model_ready") else "not ready"
        return [
            name,
            self._states.get(name, ready).lower(),
            _number(span.rate(f"{LATENCY}_count")),
            _seconds(span.quantile(0.5, LATENCY)),
            _seconds(span.quantile(0.99, LATENCY)),
            _seconds(span.gauge("headway_slo_seconds")),
            _share(in_time / judged if judged else None),
            _number(span.gauge("headway_queue_rows")),
            _seconds(span.gauge("headway_queue_seconds")),
            _number(batches / span.seconds),
            _number(span.total("headway_batch_rows_sum") / batches if batches else None),
            _share(span.mean("headway_batch_padding_ratio")),
            _number(span.total("headway_items_refused_total")),
            _number(span.gauge("headway_batch_cap_rows")),
            _seconds(span.gauge("headway_linger_cap_seconds")),
            f"{busy:.0f}/{busy + idle + away:.0f}",
        ]

    def _last(self) -> list[str]:
        if self._denied:
            return [self._denied]
        return [*self._incidents[::-1], *self._batches[:-11:-1]]


def _batch_line(each: Any) -> str:
    return (
        f"{each['model']} batch {each['batch']}, worker {each['worker']}: {each['rows']} of "
        f"{each['batch_cap']} rows, {each['reason']}, {each['ran_ms']} ms, "
        f"{each['padding']:.0%} padding"
    )


def _incident_line(each: Any) -> str:
    return f"! {each['model']}: {each['kind']}: {each['message']}"


def _one_line(text: str) -> str:
    return printable(text.replace("\n", "?"))


def _is_language(span: Span) -> bool:
    return span.gauge("headway_generation_tokens_total") is not None


def _language_row(name: str, span: Span) -> list[str]:
    queried = span.count("headway_prefix_cache_queries_total")
    hits = span.count("headway_prefix_cache_hits_total")
    return [
        name,
        _number(span.rate("headway_generation_tokens_total")),
        _seconds(span.quantile(0.5, FIRST_TOKEN)),
        _seconds(span.quantile(0.99, FIRST_TOKEN)),
        _number(span.gauge("headway_num_requests_running")),
        _number(span.gauge("headway_num_requests_waiting")),
        _share(span.gauge("headway_kv_cache_usage_perc")),
        _share(hits / queried if queried else None),
        _number(span.count("headway_num_preemptions_total")),
    ]


def _reasons(spans: Any) -> str:
    counts: Counter[str] = Counter()
    for span in spans:
        counts.update(span.divided("headway_batch_rows_count"))
    total = sum(counts.values())
    named = [f"{name} {_share(count / total)}" for name, count in counts.most_common() if count]
    return ", ".join(named) or "none"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _bytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 2**20:.0f} MiB"
