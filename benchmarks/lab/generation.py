"""How many tokens a second the engine generates on the CPU, in process, token ids in and out.

`python -m benchmarks.lab.generation --folder DIR` (a model's folder), or without: SmolLM2-135M's
shape with random weights, as the peers' scripts use. Prompts of 48 tokens, 64 out; 1, 4, 16, 32 at
once.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.engine.cpu.runner import CpuRunner

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
}


def save_random(folder: Path) -> Path:
    """A folder with the shape's weights, drawn at random."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    hidden, inner, kv = 576, 1536, 192
    tensors = {"model.embed_tokens.weight": torch.randn(49152, hidden) * 0.02}
    tensors["model.norm.weight"] = torch.ones(hidden)
    for layer in range(30):
        sizes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, size in sizes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.randn(size) * 0.03
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(hidden)
    save_file({name: each.half() for name, each in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return folder


def measure(
    runner: "CpuRunner", count: int, *, prompt: int, out: int, seed: int = 0
) -> dict[str, float]:
    """All at once, from the first step to the last token."""
    from headway.core.generation.sampling import Sampling
    from headway.core.generation.scheduler import GenerationScheduler
    from headway.core.generation.sequence import Sequence
    from headway.core.generation.step import Step

    scheduler = GenerationScheduler(runner.limits)
    draw = random.Random(seed)
    for number in range(count):
        tokens = tuple(draw.randrange(10, 49000) for _ in range(prompt))
        scheduler.submit(Sequence(number, 0.0, tokens, out))
        runner.add(number, tokens, Sampling(temperature=0.0))
    began, cpu = time.perf_counter(), time.process_time()
    decoded, decoding, steps = 0, 0.0, 0
    while scheduler.running or scheduler.waiting:
        step = scheduler.next_step(0.0)
        assert isinstance(step, Step)
        before = time.perf_counter()
        sampled = runner.run(step)
        seconds = time.perf_counter() - before
        scheduler.complete(step, sampled.tokens, seconds)
        steps += 1
        if not step.prefill:
            decoded, decoding = decoded + len(step.decode), decoding + seconds
    seconds = time.perf_counter() - began
    return {
        "sequences": count,
        "tok_s": count * out / seconds,
        "decode_tok_s": decoded / decoding if decoding else 0.0,
        "cpu_s": time.process_time() - cpu,
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prompt", type=int, default=48)
    parser.add_argument("--out", type=int, default=64)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 16, 32])
    arguments = parser.parse_args()
    from headway.engine.starting import EngineOptions, start

    with tempfile.TemporaryDirectory() as work:
        folder = arguments.folder or save_random(Path(work))
        options = EngineOptions(
            max_context=2048, dtype=arguments.dtype, threads=arguments.threads, kv_cache_gib=1.0
        )
        runner = start(folder, options)
        measure(runner, 2, prompt=arguments.prompt, out=4)
        for count in arguments.at_once:
            result = measure(runner, count, prompt=arguments.prompt, out=arguments.out, seed=count)
            print(json.dumps({key: round(value, 2) for key, value in result.items()}), flush=True)


if __name__ == "__main__":
    main()
