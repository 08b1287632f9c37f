"""Is a text in company the text alone? Tiny decoders behind HTTP, 32 callers at once.

`python -m benchmarks.exactness.company`: ten families that are not our own definition, and Llama.
First each caller asks alone; then all ask together, each a random time after the first.
"""

import argparse
import http.client
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FAMILIES = (
    *("llama", "gpt2", "gpt_neox", "phi3", "gemma", "gemma3_text", "olmo2", "granite"),
    *("qwen3_moe", "cohere", "starcoder2"),
)
_CALLERS, _TOKENS, _SPREAD_S, _START_S = 32, 24, 0.3, 120.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness.company")
    parser.add_argument("families", nargs="*", default=FAMILIES)
    different = 0
    for family in parser.parse_args().families:
        with tempfile.TemporaryDirectory() as folder:
            equal = _equal(family, Path(folder))
        different += _CALLERS - equal
        print(f"{family}: {equal} of {_CALLERS} texts are equal", flush=True)
    return 1 if different else 0


def _equal(family: str, folder: Path) -> int:
    _save(family, folder)
    asked = [_request(number) for number in range(_CALLERS)]
    with _server(folder) as port:
        alone = [_text(port, each) for each in asked]
        begin = threading.Barrier(_CALLERS)

        def later(number: int) -> str:
            begin.wait()
            time.sleep(random.Random(number).uniform(0.0, _SPREAD_S))
            return _text(port, asked[number])

        with ThreadPoolExecutor(_CALLERS) as callers:
            together = list(callers.map(later, range(_CALLERS)))
    assert len(set(alone)) > _CALLERS // 2, "the texts are all alike: nothing is shown"
    return sum(one == other for one, other in zip(alone, together, strict=True))


def _request(number: int) -> dict[str, Any]:
    """Half of them greedy, half drawn."""
    chance = random.Random(number)
    prompt = "".join(chance.choices("abcdefgh ,.", k=chance.randint(1, 90)))
    drawn = {"temperature": 1.0, "top_p": 0.9, "seed": number} if number % 2 else {"temperature": 0}
    return {"prompt": prompt, "max_tokens": _TOKENS, "ignore_eos": True, **drawn}


def _text(port: int, asked: dict[str, Any]) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/v1/completions", json.dumps({"model": "tiny", **asked}))
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    assert answer.status == 200, body
    return str(json.loads(body)["choices"][0]["text"])


def _save(family: str, folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    from benchmarks.exactness.decoders import config_of
    from benchmarks.exactness.decoding import save

    config = config_of(family, {"vocab_size": 272})
    save(AutoModelForCausalLM.from_config(config).eval(), folder)
    _save_tokenizer(folder)


def _save_tokenizer(folder: Path) -> None:
    """Some special tokens, then one for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*(f"<{number}>" for number in range(16)), *letters]
    tokenizer = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")


@contextmanager
def _server(folder: Path) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "headway", "serve", str(folder), "--name", "tiny"]
    command += ["--port", str(port), "--grpc-port", "-1", "--dtype", "float32"]
    command += ["--kv-cache-gib", "0.05", "--max-sequences", "16", "--step-tokens", "48"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_ready(port, process, folder / "log")
        yield port
    finally:
        process.terminate()
        process.wait(60)


def _wait_ready(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise SystemExit(f"the server does not get ready:\n{log.read_text()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
