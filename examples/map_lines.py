"""`headway map` from a program: a function of yours over a file of JSON lines, in batches."""

import json
import tempfile
from pathlib import Path

from headway.cli.main import main


def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "texts.jsonl"), Path(folder, "lengths.jsonl")
        source.write_text('"hello"\n"a longer text"\n"bye"\n')
        command = ["map", "__main__:lengths", str(source), str(target), "--json"]
        main(command)
        for line in target.read_text().splitlines():
            print(json.loads(line))
        main(command)  # once more: nothing is left to do
