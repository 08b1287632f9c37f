"""`transformers` by itself: its own continuous batching, or static batches by `generate`."""

import argparse
from typing import Any

from benchmarks.peers.loads import Load, measure


def load_model(folder: str, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None  # every answer has the length asked for
    model.generation_config.do_sample = False
    model.generation_config.temperature = model.generation_config.top_p = None
    return model.eval()


def continuous(model: Any, load: Load) -> None:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    longest = max(chat.out for chat in load.chats)
    options = GenerationConfig(max_new_tokens=longest, do_sample=False, eos_token_id=-1)
    sizes = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=512)
    with model.continuous_batching_context_manager(
        generation_config=options, continuous_batching_config=sizes, timeout=5
    ) as manager:
        for chat in load.chats:
            manager.add_request(chat.prompt, max_new_tokens=chat.out, eos_token_id=-1)
        ended = 0
        while ended < len(load.chats):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                ended += 1
            assert result is not None or manager.is_running(), "its thread has ended"


def static(model: Any, load: Load) -> None:
    """As many rows to the end as the batch had at its start."""
    import torch

    for batch in load.batches:
        ids = torch.tensor([chat.prompt for chat in batch])
        longest = max(chat.out for chat in batch)
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=longest, pad_token_id=0
            )
        assert out.shape[1] == ids.shape[1] + longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kind", choices=("continuous", "static"), required=True)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    model = load_model(arguments.folder, arguments.dtype)
    ways = {"continuous": continuous, "static": static}
    run = ways[arguments.kind]
    measure(arguments.kind, lambda load: run(model, load), rounds=arguments.rounds)


if __name__ == "__main__":
    main()
