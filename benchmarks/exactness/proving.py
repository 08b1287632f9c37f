"""What does a proof at load cost? A decoder of 135M parameters that is not our own definition.

`python -m benchmarks.exactness.proving`: SmolLM2-135M's sizes, as OLMo 2, with random weights. Each
start has a process of its own; the first one leaves compiled kernels and the file in memory.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_SIZES = {
    **{"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536},
    **{"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
    **{"max_position_embeddings": 2048, "tie_word_embeddings": True},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
_START = """
import sys, time
from pathlib import Path
from headway.engine.starting import EngineOptions, start
import transformers.modeling_utils
began = time.perf_counter()
start(Path(sys.argv[1]), EngineOptions(dtype=sys.argv[2], device="cpu", kv_cache_gib=0.1))
print(time.perf_counter() - began)
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness.proving")
    parser.add_argument("--family", default="olmo2")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name) / "model", Path(name) / "cache"
        parameters = _save(options.family, folder)
        _seconds(folder, options.dtype, cache)
        shutil.rmtree(cache / "headway" / "proofs")
        proved, again = (_seconds(folder, options.dtype, cache) for _ in range(2))
    print(
        f"{options.family}, {parameters / 1e6:.0f}M parameters, {options.dtype}: the proof takes "
        f"{proved - again:.1f} s of a start of {proved:.1f} s; the second start takes {again:.1f} s"
    )
    return 0


def _save(family: str, folder: Path) -> int:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**_SIZES))
    model.save_pretrained(folder)
    return int(sum(each.numel() for each in model.parameters()))


def _seconds(folder: Path, dtype: str, cache: Path) -> float:
    """Of a start, without the time that Python takes to import torch and transformers."""
    done = subprocess.run(
        [sys.executable, "-c", _START, str(folder), dtype],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
