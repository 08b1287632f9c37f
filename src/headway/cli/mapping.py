"""`headway map`: runs a file of JSON lines through a model, into another file."""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.commands import Commands
from headway.cli.serve import add_model_flags, is_repository, name_for
from headway.errors import ConfigError, HeadwayError, InvalidInput

if TYPE_CHECKING:
    from headway.config import ModelConfig
    from headway.hosting.generation.served import ServedGenerator
    from headway.hosting.hosted import Served
    from headway.offline.mapping import Tally
    from headway.offline.output import Output

_DESCRIPTION = """\
Runs every line of a file through a model, in full batches of lines of like length. A large file
takes no more memory than a small one.

  headway map minilm texts.jsonl vectors.jsonl
  headway map app:Sentiment reviews.jsonl scores.jsonl --max-batch-size 256

Each line of the input is one value as JSON, as the model's plain route takes it: "a text", 3.0,
[1, 2], {"x": 1}; blank lines are left out. For a language model it is a prompt (a text, or a chat's
messages), or an object with its options: {"prompt": "Once", "max_tokens": 40}. Each line of
the output answers one of the input, in the same order: {"line": 7, "result": …}, or
{"line": 7, "error": {"code": …, "message": …}}.

With --on, Ray Data keeps models busy with parts of the file: on this machine (local), or on the
cluster that this machine is a node of (auto). Every node has the file and the model's code at the
same paths.

  headway map app:Sentiment reviews.jsonl scores.jsonl --on auto --models 8

If it is killed, the same command goes on where it stopped: no line is lost, none is answered
twice. OUT.headway, beside the output, records the model and the input that made it.
It exits with 0 if every line has its result, with 1 if more lines failed than --max-errors allows
(none).
"""
_BATCHING = ("max_batch_size", "max_batch_cost", "batch_sizes", "workers")
_GENERATION = ("max_context", "max_sequences", "step_tokens", "kv_cache_gib", "dtype", "device")
_FLAGS = (*_BATCHING, *_GENERATION, "warm_up", "warm_up_s", "options")
_AHEAD = 16  # batches; the scheduler looks at eight of them to choose one


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "map",
        usage="%(prog)s MODEL IN OUT [options]",
        help="run a file of JSON lines through a model",
        description=_DESCRIPTION,
    )
    parser.add_argument(
        "target", metavar="MODEL", help="as for `headway serve`: module:Class, a file, a name, …"
    )
    parser.add_argument("source", metavar="IN", type=Path, help="a file, one JSON value a line")
    parser.add_argument(
        "output", metavar="OUT", type=Path, help="a file that is created, or continued"
    )
    parser.add_argument("--overwrite", action="store_true", help="start OUT from scratch")
    parser.add_argument(
        "--max-errors",
        metavar="N",
        type=_count,
        help="stop once more than N lines have failed (default: run to the end)",
    )
    parser.add_argument("--json", action="store_true", help="for programs: the summary as JSON")
    parser.add_argument(
        "--on", metavar="RAY", help="through Ray Data: local, or auto on a node of a cluster"
    )
    parser.add_argument(
        "--models",
        metavar="N",
        type=_count,
        help="with --on: how many load the model (default: one for each GPU, or else each CPU)",
    )
    add_model_flags(parser, _FLAGS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from headway.offline.lines import head_of
    from headway.offline.output import Output, OutputNote

    sys.path.insert(0, str(Path.cwd()))  # `app:Model` is app.py here
    if arguments.models is not None and arguments.on is None:
        raise ConfigError("needs --on", field="--models")
    if arguments.on is not None:
        from headway.cli.mapping_on_ray import ray_for

        ray_for(arguments.on)
    config = config_of(arguments)
    _check_files(arguments.source, arguments.output)
    note = OutputNote(
        model=config.target, options=config.options, input_head=head_of(arguments.source)
    )
    output = Output(arguments.output, note, arguments.source, overwrite=arguments.overwrite)
    try:
        with output:
            return _map(arguments, config, output)
    except KeyboardInterrupt:
        print("headway: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except ConfigError:
        raise
    except HeadwayError as error:
        print(f"headway: {error}; the same command goes on from here", file=sys.stderr)
        return 1


def _map(arguments: argparse.Namespace, config: "ModelConfig", output: "Output") -> int:
    batches = BatchCounts()
    if arguments.on is None:
        tally, seconds = asyncio.run(_map_here(arguments, config, output, batches))
    else:
        from headway.cli.mapping_on_ray import map_on_ray

        started = time.monotonic()
        with _Progress(arguments.source) as progress:
            tally = map_on_ray(
                *(arguments.on, arguments.source, config, output, batches),
                models=arguments.models,
                max_errors=arguments.max_errors,
                report=progress.show,
            )
        seconds = time.monotonic() - started
    summary = {
        "lines": tally.lines,
        "failed": tally.failed,
        "resumed_after_line": output.last_line,
        "failed_before": output.failed,
        "seconds": round(seconds, 3),
        "lines_per_s": round(tally.lines / seconds, 1) if tally.lines else 0.0,
        **batches.summary(),
        "gave_up": tally.gave_up,
    }
    _tell(arguments, summary, tally)
    failed = output.failed + tally.failed
    return 1 if failed > (arguments.max_errors or 0) else 0


async def _map_here(
    arguments: argparse.Namespace, config: "ModelConfig", output: "Output", batches: "BatchCounts"
) -> "tuple[Tally, float]":
    """And in how many seconds, once the model was ready."""
    from headway.offline.lines import lines_of
    from headway.offline.mapping import map_lines

    served, answer = await opened(config, batches)
    try:
        started = time.monotonic()
        with arguments.source.open("rb") as file, _Progress(arguments.source) as progress:
            tally = await map_lines(
                lines_of(file, after=output.last_line),
                answer,
                output.write,
                ahead=served.config.max_queue,
                max_errors=arguments.max_errors,
                failed_before=output.failed,
                cut=output.note_cut,
                report=progress.show,
            )
        return tally, time.monotonic() - started
    finally:
        await served.close()


async def opened(
    config: "ModelConfig", batches: "BatchCounts"
) -> "tuple[Any, Callable[[Any], Awaitable[bytes]]]":
    """The model, ready, and what answers a line with it."""
    from headway.hosting.hosted import Served
    from headway.hosting.tables import ModelOrigin, cache_dir_of
    from headway.models import catalogue

    served: Any
    if catalogue.generates(config.target):
        served = generator_of(config)
        answer = answer_of(served)
    else:
        served = Served(
            config, origin=ModelOrigin(cache_dir=cache_dir_of("")), adjust=_for_throughput
        )
        answer = _answer_of(served)
    await served.start()
    served.observe(batches)
    return served, answer


def _answer_of(served: "Served") -> Callable[[Any], Awaitable[bytes]]:
    from headway.hosting.registry import PLAIN
    from headway.server.families.plain.handlers import json_of

    async def answer(value: Any) -> bytes:
        return json_of(await served.predict(value, PLAIN))

    return answer


class BatchCounts:
    """Watches the batches, for the summary."""

    def __init__(self) -> None:
        self.counts = (0, 0, 0, 0)  # batches, rows, sizes, padded sizes

    def __call__(self, event: Any) -> None:
        from headway.runtime.events import BatchFinished

        if not isinstance(event, BatchFinished):
            return
        sizes = [item.size for item in event.batch.items]
        self.add(1, event.batch.rows, sum(sizes), len(sizes) * max(sizes))

    def add(self, batches: int, rows: int, sizes: int, padded: int) -> None:
        before = self.counts
        self.counts = before[0] + batches, before[1] + rows, before[2] + sizes, before[3] + padded

    def summary(self) -> dict[str, float]:
        batches, rows, sizes, padded = self.counts
        return {
            "batches": batches,
            "mean_batch": round(rows / batches, 1) if batches else 0.0,
            "padding_waste": round(1 - sizes / padded, 3) if padded else 0.0,
        }


class _Progress:
    """A bar over the bytes of the input: how many lines a file has is known only at its end."""

    _FORMAT = "{l_bar}{bar}| {postfix} [{elapsed}, {remaining} left]"

    def __init__(self, source: Path) -> None:
        self._source = source

    def __enter__(self) -> "_Progress":
        from tqdm import tqdm

        self._begin: int | None = None
        total = self._source.stat().st_size
        # None: only on a terminal.
        self._bar = tqdm(total=total, disable=None, bar_format=self._FORMAT, desc="map")
        self._started = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def show(self, tally: "Tally") -> None:
        if self._bar.disable:
            return
        rate = tally.lines / max(time.monotonic() - self._started, 1e-9)
        failed = f", {tally.failed} failed" if tally.failed else ""
        self._bar.set_postfix_str(f"{tally.lines} lines, {rate:.0f}/s{failed}", refresh=False)
        if self._begin is None:  # the speed of an earlier run does not count
            self._begin = tally.end
            self._bar.initial = self._bar.n = tally.end
        self._bar.update(tally.end - self._bar.n)


def _tell(arguments: argparse.Namespace, summary: dict[str, Any], tally: "Tally") -> None:
    for line, message in tally.first_errors:
        print(f"{arguments.source}:{line}: {message}", file=sys.stderr)
    if tally.failed > len(tally.first_errors):
        more = tally.failed - len(tally.first_errors)
        print(f"… and {more} more; each is an error record in the output", file=sys.stderr)
    if tally.gave_up:
        print(f"headway: gave up: {tally.failed} lines failed", file=sys.stderr)
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return
    resumed = summary["resumed_after_line"]
    if resumed and not tally.lines:
        failed = f"; {summary['failed_before']} of them failed" if summary["failed_before"] else ""
        print(f"nothing to do: an earlier run answered all lines up to {resumed}{failed}")
        return
    print(
        f"{tally.lines} lines in {summary['seconds']:.1f} s ({summary['lines_per_s']:.0f}/s)"
        + (f", after line {resumed} of an earlier run" if resumed else "")
        + (f" ({summary['failed_before']} of them failed)" if summary["failed_before"] else "")
        + f"; {tally.failed} failed; "
        f"{summary['batches']} batches, {summary['mean_batch']:g} rows on average"
    )


def config_of(arguments: argparse.Namespace) -> "ModelConfig":
    """The model's settings as for `serve`, except those about waiting callers."""

    from headway.config import ModelConfig
    from headway.flags import flags, resolve

    target = arguments.target
    if target.endswith(".toml") or is_repository(target):
        raise ConfigError(f"{target} may hold several models; one is expected")
    typed = {
        flag.field: value
        for flag in flags(ModelConfig)
        if (value := getattr(arguments, flag.field, None)) is not None
    }
    base = {"models": [{"name": name_for(target), "target": target}]}
    [config] = resolve(base, where=target, environment=dict(os.environ), typed=typed).models
    return config


def _for_throughput(config: "ModelConfig") -> "ModelConfig":
    """No caller waits for a line, so the model's own settings of time are ignored."""
    import msgspec

    return msgspec.structs.replace(
        config,
        policy="auto",
        order="fifo",
        max_wait_ms=None,
        slo_ms=None,
        timeout_ms=None,
        execute_timeout_ms=None,
        max_queue=_AHEAD * config.max_batch_size * config.workers,
    )


def _check_files(source: Path, output: Path) -> None:
    if "-" in (str(source), str(output)):
        raise ConfigError("- is not served: files are expected, so that a run can be resumed")
    if not source.is_file():
        raise ConfigError(f"{source}: there is no such file")
    if not output.parent.is_dir():
        raise ConfigError(f"{output}: the folder {output.parent} does not exist")
    if output.exists() and output.samefile(source):
        raise ConfigError(f"{output} is the input")


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"at least 0 is expected, not {number}")
    return number


AHEAD = 4  # times the answers computed at once: no step waits for the file


def generator_of(config: "ModelConfig") -> "ServedGenerator":
    """No caller waits for a line, so settings of time are ignored."""
    import msgspec

    from headway.hosting.generation.served import ServedGenerator
    from headway.models import catalogue
    from headway.models.chat.model import LanguageModel

    ahead = AHEAD * (config.max_sequences or 256)
    config = msgspec.structs.replace(config, timeout_ms=None, max_queue=ahead)
    model = catalogue.build(config.target, config.options)
    assert isinstance(model, LanguageModel)
    return ServedGenerator(config, model)


def answer_of(served: "ServedGenerator") -> Callable[[Any], Awaitable[bytes]]:
    from headway.hosting.registry import Ask
    from headway.server.families.plain.handlers import json_of

    async def answer(value: Any) -> bytes:
        prompt, options = prompt_of(value)
        return json_of(await served.predict(prompt, Ask(parameters=options)))

    return answer


def prompt_of(value: Any) -> tuple[Any, dict[str, Any]]:
    """A line: a text, messages, token ids; or an object with one of them and options for it."""
    if not isinstance(value, dict):
        return value, {}
    found = [name for name in ("prompt", "messages") if name in value]
    if len(found) != 1:
        raise InvalidInput("an object needs either a prompt or messages")
    (name,) = found
    return value[name], {each: option for each, option in value.items() if each != name}
