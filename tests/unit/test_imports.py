"""Arrows point one way: the table of ARCHITECTURE.md, held against what `src/headway` imports."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headway"
# Every package may import `errors`.


class Row(NamedTuple):
    headway: frozenset[str]
    third_party: frozenset[str] = frozenset()
    lazily: frozenset[str] = frozenset()  # third party, only in a function or for type checkers


def row(headway: str, third_party: str = "", *, lazily: str = "") -> Row:
    return Row(*(frozenset(names.split()) for names in (headway, third_party, lazily)))


TABLE = {
    "__init__": row(
        "client compiled core events generator model observe runtime config single wiring"
    ),
    "client": row("core.routing", lazily="httpx msgspec"),
    "wiring": row("*", lazily="*"),
    "errors": row(""),
    "compiled": row(""),
    "version": row(""),
    "core": row(""),
    "model": row("core", lazily="numpy"),
    "setting_errors": row("", "msgspec"),
    "config": row("core setting_errors", "msgspec"),
    "flags": row("config setting_errors", "msgspec"),
    "padding": row("", "numpy"),
    "machine": row(""),
    "files": row(""),
    "runtime": row("core model", "numpy"),
    "events": row("core runtime.events"),  # the public door to them
    "single": row("model"),
    "compat": row("model wiring"),
    "backends": row("model", lazily="*"),
    "engine": row(
        "core files machine model", "torch triton numpy", lazily="safetensors transformers"
    ),
    "generator": row("core runtime models engine hosting observe"),
    "signature": row("model", "numpy msgspec"),
    "models": row("model backends engine config files padding", "numpy", lazily="*"),
    "hosting": row(
        "core files machine runtime model models signature config observe", "numpy msgspec tqdm"
    ),
    "offline": row("", "msgspec"),  # `headway map`
    "lab": row("core", "numpy", lazily="matplotlib"),
    "loadgen": row("core lab wire", "numpy httptools msgspec hpack"),  # `headway bench`
    "conformance": row("loadgen server.grpc", "numpy grpc"),
    "observe": row("core runtime.events", "opentelemetry", lazily="pynvml"),
    "wire": row("", "httptools hpack"),
    "server": row("wire core runtime hosting model models signature config observe version", "*"),
    # pytest only in the plugin, which `headway` never imports
    "testing": row("client core runtime model wiring", "pytest"),
    "ray": row("core wiring server.grpc", "ray numpy", lazily="grpc"),  # never imported by others
    "cli": row("*", "*"),
}
NOT_IN_CORE = frozenset(["asyncio", "time", "random", "logging", "os", "threading"])
HEAVY = frozenset(
    [
        *("numpy", "scipy", "pandas", "matplotlib", "tqdm", "torch", "transformers", "onnxruntime"),
        *("msgspec", "starlette", "uvicorn", "fastapi", "aiohttp", "grpc", "uvloop"),
        *("prometheus_client", "opentelemetry", "hypothesis", "pytest"),
    ]
)


class Import(NamedTuple):
    module: str
    is_lazy: bool
    line: int


def imports_of(tree: ast.AST, *, is_lazy: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(each.name, is_lazy, node.lineno) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            module = node.module or ""
            if module == "headway":
                yield from (Import(f"headway.{n.name}", is_lazy, node.lineno) for n in node.names)
            else:
                yield Import(module, is_lazy, node.lineno)
        yield from imports_of(node, is_lazy=is_lazy or runs_later(node))


def runs_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def is_allowed(package: str, found: Import) -> bool:
    allowed = TABLE[package]
    top, _, rest = found.module.partition(".")
    if top == "headway":
        target = rest.partition(".")[0]
        if target in {package, "errors"} and package != "errors":
            return True
        if target == "engine" and not found.is_lazy:
            return False  # its modules import torch at their top
        return bool(allowed.headway & {"*", target, rest})
    if top in sys.stdlib_module_names:
        return package != "core" or top not in NOT_IN_CORE
    known = allowed.third_party | (allowed.lazily if found.is_lazy else frozenset())
    return bool(known & {"*", top})


def wrong_imports(package: str, source: str) -> list[str]:
    return [
        f"line {found.line}: {package} imports {found.module}"
        for found in imports_of(ast.parse(source))
        if not is_allowed(package, found)
    ]


def package_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def test_every_package_has_its_row_in_the_table() -> None:
    packages = {package_of(path) for path in SOURCE.rglob("*.py")} - {"__main__"}
    assert packages <= set(TABLE), "a new package needs its row, here and in ARCHITECTURE.md"


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_the_way_the_table_says(path: Path) -> None:
    package = "cli" if path.stem == "__main__" else package_of(path)
    assert wrong_imports(package, path.read_text()) == []


# Rooms that still import each other, in a circle. Circles may become smaller; none is added.
# (A room and its parent are two rooms: a package is values below its rooms, or a face above them.)
CIRCLES = []


def room_of(module: str) -> str | None:
    """The folder of a module of ours, or of the package of that name; None: it is no folder's."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    if path.is_dir():
        return str(path.relative_to(SOURCE))
    return str(path.parent.relative_to(SOURCE)) if path.with_suffix(".py").exists() else None


def names_of(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported, or names in them; for type checkers only does not count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        yield from names_of(node)


def rooms_imported(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """By room. `sources`: of modules, each with the room that it is in."""
    found: dict[str, set[str]] = {}
    for path, source in sources.items():
        room = str(Path(path).parent)
        for name in names_of(ast.parse(source)):
            if name.startswith("headway."):
                other = room_of(name) or room_of(name.rpartition(".")[0])
                if other not in (None, ".", room):
                    found.setdefault(room, set()).add(str(other))
    found.pop(".", None)  # the public names, and modules on their own
    return found


def circles_in(arrows: Mapping[str, set[str]]) -> list[str]:
    def reached(room: str) -> set[str]:
        seen: set[str] = set()
        left = [room]
        while left:
            new = arrows.get(left.pop(), set()) - seen
            seen |= new
            left += new
        return seen

    far = {room: reached(room) for room in arrows}
    circles = {
        frozenset(other for other in far[room] if room in far.get(other, set()))
        for room in arrows
        if room in far[room]
    }
    return sorted(" ".join(sorted(circle)) for circle in circles)


def test_no_rooms_import_each_other_in_a_circle_but_those_that_are_listed() -> None:
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in FILES}
    listed = [set(each.split()) for each in CIRCLES]
    found = circles_in(rooms_imported(sources))
    assert [each for each in found if not any(set(each.split()) <= row for row in listed)] == []


def test_a_circle_of_rooms_is_found() -> None:
    sources = {
        "wire/a.py": "from headway.wire.http1.server import HttpServer",
        "wire/http1/b.py": "def f():\n    from headway.server.auth import keys",
        "server/auth/c.py": "import headway.wire.limits",
        "server/auth/d.py": "if TYPE_CHECKING:\n    from headway.server.app import App",
        "server/e.py": "from headway.server.auth.keys import Caller",
    }
    assert circles_in(rooms_imported(sources)) == ["server/auth wire wire/http1"]


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("errors", "from headway.core import Item"),
        ("core", "import asyncio"),
        ("core", "def f():\n    import time"),
        ("core", "import numpy as np"),
        ("core", "from headway.runtime.batching.batcher import Batcher"),
        ("core", "from headway import model"),
        ("model", "from headway.runtime import Batcher"),
        ("runtime", "from headway.lab import simulate"),
        ("lab", "from headway.runtime import Batcher"),
        ("lab", "import matplotlib.pyplot as plt"),
        ("testing", "import numpy"),
        ("observe", "from headway.runtime.batching.batcher import Batcher"),
        ("engine", "import transformers"),
        ("models", "from headway.engine.cpu.runner import CpuRunner"),
        ("model", "import numpy"),
    ],
)
def test_an_arrow_drawn_the_wrong_way_is_found(package: str, line: str) -> None:
    assert len(wrong_imports(package, line)) == 1


@pytest.mark.parametrize(
    ("package", "line"),
    [
        (
            "core",
            "import heapq\nfrom headway.core.items import Item\nfrom headway.errors import Shed",
        ),
        ("runtime", "import asyncio\nimport numpy as np\nfrom headway.core.items import Item"),
        ("observe", "from headway.runtime.events import Observer"),
        ("engine", "import torch\ndef load():\n    import transformers"),
        ("models", "def load():\n    from headway.engine.cpu.runner import CpuRunner"),
        ("model", "if TYPE_CHECKING:\n    import numpy"),
        ("lab", "def plot():\n    import matplotlib.pyplot as plt"),
        ("cli", "from headway.lab import simulate\nimport tqdm"),
    ],
)
def test_an_arrow_drawn_the_right_way_passes(package: str, line: str) -> None:
    assert wrong_imports(package, line) == []


def imported_by(code: str) -> set[str]:
    """In a process of its own; what it prints itself goes to stderr."""
    aside = "import sys\nout, sys.stdout = sys.stdout, sys.stderr\n"
    code = f"{aside}{code}\nprint(*sys.modules, file=out)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_headway_imports_nothing_heavy() -> None:
    assert not imported_by("import headway, headway.core") & HEAVY


def test_a_command_imports_no_other_commands_modules() -> None:
    code = (
        "from headway.cli.main import main\n"
        "try: main(['health', '--help'])\n"
        "except SystemExit as ended: assert not ended.code"
    )
    found = imported_by(code)
    assert "headway.cli.health" in found
    assert not found & {"numpy", "headway.cli.serve", "headway.cli.simulate"}


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by it: a process that takes both ends at the second."""
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []
