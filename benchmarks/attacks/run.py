"""Every attack, without a key and with one, and the table of what honest clients saw meanwhile."""

import contextlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.attacks import over_chat, over_grpc, over_http, over_http2, over_routes
from benchmarks.attacks.guessing import key_guessing
from benchmarks.attacks.honest import LARGE, PROBES, Figures, HonestClients
from benchmarks.attacks.scene import (
    Attack,
    Memory,
    Outcome,
    Scene,
    Target,
    apart,
    attacked,
    behind_honest_clients,
)
from benchmarks.report import Bar, Report

MOST_SLOWER_MS = 60.0
MOST_GROWTH_MIB = 64.0  # eight of them are `max_held_bytes` here
HTTP_ATTACKS: Mapping[str, Attack] = {**over_http.ATTACKS, **over_routes.ATTACKS}
MOUNTED_ATTACKS: Mapping[str, Attack] = {  # what comes by is not uvicorn's own affair
    name: attack
    for name, attack in HTTP_ATTACKS.items()
    if name in over_http.OF_BODIES or name in over_routes.OF_BODIES
}
GRPC_ATTACKS: Mapping[str, Attack] = {**over_http2.ATTACKS, **over_grpc.ATTACKS}


_DOORS: Mapping[str, tuple[tuple[str, Mapping[str, Attack]], ...]] = {
    "headway": (("HTTP", HTTP_ATTACKS), ("gRPC", GRPC_ATTACKS)),
    "mounted": (("mounted", MOUNTED_ATTACKS),),
    "chat": (("HTTP", over_chat.ATTACKS),),
}
_WHERE = {
    "headway": ", over HTTP and our own gRPC",
    "mounted": ", below a prefix, on uvicorn",
    "chat": "",
}


class Line(NamedTuple):
    name: str
    door: str  # which port, on which stack
    has_key: bool
    outcome: Outcome
    figures: Mapping[str, Figures]
    growth_mib: float

    @property
    def holds(self) -> bool:
        return self.outcome.is_refused and not self.failures

    @property
    def failures(self) -> list[str]:
        """Of honest requests. With a key the room for large bodies can be filled: that is what the
        limit is for, and the key names its owner."""
        return [
            f"{name}: {failure}"
            for name, each in self.figures.items()
            if name != LARGE or not self.has_key
            for failure in each.failures
        ]

    def slower_ms(self, calm: Mapping[str, Figures]) -> float:
        """The worst of the p99s over its calm one."""
        kinds = [name for name in self.figures if name != LARGE]
        return max(self.figures[name].p99_ms - calm[name].p99_ms for name in kinds)

    def row(self, calm: Mapping[str, Figures]) -> list[object]:
        probes = sum(self.figures[name].served for name in PROBES if name in self.figures)
        served = sum(each.served for each in self.figures.values()) - probes
        p99 = ", ".join(
            f"{name} {self.figures[name].p99_ms:.1f} ({calm[name].p99_ms:.1f})"
            for name in ("HTTP", "gRPC")
            if name in calm
        )
        told = f"{served} + {probes} probes, {len(self.failures)} failed"
        return [
            *(self.name, self.door, "yes" if self.has_key else "no"),
            *(self.outcome.tried, self.outcome.happened, told, p99, f"{self.growth_mib:.0f}"),
        ]


def attacks(is_quick: bool) -> Report:
    return _report("Attacks", ("headway", "mounted"), None, is_quick=is_quick)


def chat_attacks(is_quick: bool) -> Report:
    """On a language model of two layers. Its engine is a process of its own, on any core."""
    with _tiny_model() as folder:
        return _report("Attacks on a language model", ("chat",), folder, is_quick=is_quick)


@contextlib.contextmanager
def _tiny_model() -> Iterator[Path]:
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "llm"))
    from models import build  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as name:
        yield build("llama", Path(name) / "tiny")


def names_of(stack: str) -> list[str]:
    return [name for _, attacks in _DOORS[stack] for name in attacks]


def one_line_each(
    names: list[str],
    stack: str,
    keys: tuple[bool, ...],
    *,
    seconds: float = 1.5,
    calm_s: float = 0.0,
) -> Iterator[tuple[Line, list[object]]]:
    """Some attacks, and their rows. `calm_s`: measure calm figures before each attack."""
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(_tiny_model()) if stack == "chat" else None
        scene = opened.enter_context(attacked("headway" if stack == "chat" else stack, folder))
        opened.enter_context(apart(scene.server))
        target = scene.target
        target.seconds = seconds
        ports = target.port, target.grpc_port
        with HonestClients(*ports, scene.honest_key, target.prefix) as clients:
            calm, memory = clients.calm_figures(), Memory(scene.server.pid)
            tried = {
                name: (door, attack)
                for door, attacks in _DOORS[stack]
                for name, attack in attacks.items()
            }
            for name in names:
                door, attack = tried[name]
                for has_key in keys:
                    aim = target if has_key else target.without_key()
                    if calm_s:
                        calm = clients.figures_of(calm_s)
                    line = _line(name, attack, door, aim, clients, memory)
                    yield line, line.row(calm)


def _report(title: str, stacks: Iterable[str], chat: Path | None, *, is_quick: bool) -> Report:
    rows: list[tuple[float, list[object]]] = []  # by how much slower it made honest clients
    bars: list[Bar] = []
    for stack in stacks:
        served = attacked("headway" if stack == "chat" else stack, chat)
        with served as scene, apart(scene.server):
            target = scene.target
            ports = target.port, target.grpc_port
            with HonestClients(*ports, scene.honest_key, target.prefix) as clients:
                calm = clients.calm_figures()
                lines = list(_attack_all(scene, clients, stack, is_quick=is_quick))
        rows += [(line.slower_ms(calm), line.row(calm)) for line in lines]
        bars += _bars(lines, calm, stack)
    header = [
        *("attack", "port", "key", "tried", "what happened", "honest requests meanwhile"),
        *("their p99 in ms (calm)", "memory, MiB more"),
    ]
    rows.sort(key=lambda row: row[0], reverse=True)
    notes = [f"the slowest p99 of honest clients first; RESULTS.md keeps ten of {len(rows)} rows"]
    return Report(title, header, [row for _, row in rows], bars, notes, kept=10)


def _attack_all(
    scene: Scene, clients: HonestClients, stack: str, *, is_quick: bool
) -> Iterable[Line]:
    memory = Memory(scene.server.pid)
    tried = [
        (name, attack, door) for door, attacks in _DOORS[stack] for name, attack in attacks.items()
    ]
    scene.target.seconds = 0.5 if is_quick else 1.5
    for name, attack, where in tried:
        for target in (scene.target.without_key(), scene.target):
            yield _line(name, attack, where, target, clients, memory)
    if stack == "headway" and not is_quick:
        yield _line("key guessing by time", key_guessing, "HTTP", scene.target, clients, memory)


def _line(
    name: str, attack: Attack, door: str, target: Target, clients: HonestClients, memory: Memory
) -> Line:
    clients.figures()  # what was before does not count
    memory.start_over()
    with behind_honest_clients():
        outcome = attack(target)
    figures = clients.figures()
    return Line(name, door, bool(target.key), outcome, figures, memory.growth_mib)


def _bars(lines: list[Line], calm: Mapping[str, Figures], stack: str) -> Iterable[Bar]:
    count = len(lines)
    refused = sum(line.outcome.is_refused for line in lines)
    yield Bar(f"every attack refused{_WHERE[stack]}", f"{refused} of {count}", refused == count)
    failed = sum(bool(line.failures) for line in lines)
    probes = sum(any(PROBE in each for each in line.failures for PROBE in PROBES) for line in lines)
    asked = f"{stack}: every honest request served during every attack, keyless probes included"
    told = f"{failed} attacks with a failure, {probes} of a probe"
    yield Bar(asked, told, not failed)
    slowest = max(lines, key=lambda line: line.slower_ms(calm))
    slower_ms = slowest.slower_ms(calm)
    asked = f"{stack}: honest p99 at most {MOST_SLOWER_MS:.0f} ms over the calm one"
    over = sum(line.slower_ms(calm) > MOST_SLOWER_MS for line in lines)
    told = f"{slower_ms:.0f} ms ({slowest.name}), {over} of {count} over it"
    yield Bar(asked, told, not over)
    largest = max(lines, key=lambda line: line.growth_mib)
    asked = f"{stack}: at most {MOST_GROWTH_MIB:.0f} MiB more memory"
    told = f"{largest.growth_mib:.0f} MiB ({largest.name})"
    yield Bar(asked, told, largest.growth_mib <= MOST_GROWTH_MIB)
