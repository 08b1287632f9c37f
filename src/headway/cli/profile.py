"""`headway profile`: how long a model's batches take, by rows and by size."""

import argparse
import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.commands import Commands
from headway.errors import ConfigError, HeadwayError

if TYPE_CHECKING:
    from headway.config import ModelConfig
    from headway.core.costs import CostTable

_ROUNDS = 3
_DESCRIPTION = """\
Measure a model: how long a batch takes, by its rows and by the size of its items, and from which
batch size on larger ones gain nothing.

  headway profile minilm
  headway profile app:Sentiment --samples samples.jsonl --out sentiment.json --plot sentiment.png
  headway simulate --arrivals poisson --load 0.5,0.9 --profile sentiment.json

The model runs as in a server: in the same worker, with the same checks. What is measured is also
kept as its warm-up table, so that the next `headway serve` with the same settings starts with it.
"""
_FLAGS = ("max_batch_size", "batch_sizes", "workers", "worker", "pin", "options", "name")


def add_parser(commands: Commands) -> None:
    from headway.cli.serve import add_model_flags

    parser = commands.add_parser(
        "profile",
        usage="%(prog)s MODEL [options]",
        help="how long a model's batches take, by rows and by size",
        description=_DESCRIPTION,
    )
    parser.add_argument("target", metavar="MODEL", help="as for `headway serve`")
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="JSON lines of typical values, cheap ones first",
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="S", help="most time to measure; default 30"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the times as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (.png, .svg, .pdf)")
    parser.add_argument("--json", action="store_true", help="print the times as JSON")
    add_model_flags(parser, _FLAGS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from headway.cli.mapping import config_of

    _check(arguments)
    sys.path.insert(0, str(Path.cwd()))  # `app:Model` is app.py here
    config = config_of(arguments)
    try:
        table = asyncio.run(measured(config, arguments.samples, arguments.seconds))
    except ConfigError:
        raise
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1
    _tell(arguments, config.name, table)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    from headway.lab.report import check_plot

    if arguments.plot is not None:
        check_plot(arguments.plot)
    if arguments.samples is not None and not arguments.samples.is_file():
        raise ConfigError(f"{arguments.samples}: there is no such file", field="--samples")
    if arguments.out is not None and not arguments.out.parent.is_dir():
        raise ConfigError(f"there is no folder {arguments.out.parent}", field="--out")
    if not arguments.seconds > 0:
        raise ConfigError("must be more than 0", field="--seconds")


def _tell(arguments: argparse.Namespace, name: str, table: "CostTable") -> None:
    from headway.lab import batch_times

    document = json.dumps(table.to_json())
    if arguments.out is not None:
        try:
            arguments.out.write_text(document + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{arguments.out}: {error.strerror}", field="--out") from error
    if arguments.json:
        print(document)
    else:
        print(f"{name}\n\n{batch_times.to_table(table)}\n\n{batch_times.told(table)}")
    if arguments.plot is not None:
        batch_times.draw(table, arguments.plot, title=name)
        print(f"wrote {arguments.plot}", file=sys.stderr)


async def measured(config: "ModelConfig", samples: Path | None, limit_s: float) -> "CostTable":
    """The medians of several rounds. Kept where the model's next start looks for them."""
    import msgspec

    from headway.hosting.hosted import Served
    from headway.hosting.tables import ModelOrigin, cache_dir_of
    from headway.lab.batch_times import median_of
    from headway.models import catalogue

    if catalogue.generates(config.target):
        raise ConfigError(
            f"{config.target} generates text step by step: headway bench --api chat measures it"
        )
    config = msgspec.structs.replace(config, warm_up=True, warm_up_s=limit_s / _ROUNDS)
    origin = ModelOrigin(samples=samples)  # nothing kept is read
    served = Served(config, origin=origin)
    await served.load()
    try:
        rounds: list[CostTable] = []
        for _ in range(_ROUNDS):
            await served.warm()
            if served.costs is None:
                raise ConfigError(
                    f"{config.target} could not be measured: --samples gives it typical values"
                )
            rounds.append(served.costs)
        table = median_of(rounds)
        kept: Any = replace(origin, cache_dir=cache_dir_of(""))
        store = kept.table_store(config, served.model, config.max_batch_size)
        if store is not None:
            store.save(table)
    finally:
        await served.close()
    return table
