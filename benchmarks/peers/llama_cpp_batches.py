"""llama.cpp through llama-cpp-python's low-level API (`pip install llama-cpp-python==0.3.36`): the
GGUF file itself, prompts computed one after another, decodes together."""

import argparse
import ctypes
from collections import deque
from typing import Any

import llama_cpp as llama  # type: ignore[import-not-found,unused-ignore]

from benchmarks.peers.loads import PROMPT, Load, measure


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _quiet(*_: Any) -> None: ...


class Llama:
    def __init__(self, file: str, threads: int) -> None:
        llama.llama_backend_init()
        llama.llama_log_set(_quiet, None)
        parameters = llama.llama_model_default_params()
        self._model = llama.llama_model_load_from_file(file.encode(), parameters)
        self._vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._threads = threads
        self._batch = llama.llama_batch_init(2048, 0, 1)

    def run(self, load: Load) -> None:
        longest = max(chat.out for chat in load.chats)
        sizes = llama.llama_context_default_params()
        sizes.n_ctx = load.at_once * (PROMPT + longest + 8)
        sizes.n_batch, sizes.n_ubatch, sizes.n_seq_max = 2048, 512, load.at_once
        sizes.n_threads = sizes.n_threads_batch = self._threads
        context = llama.llama_init_from_model(self._model, sizes)
        waiting = deque(load.chats)
        free = list(range(load.at_once))
        left: dict[int, tuple[int, int]] = {}  # by slot: tokens to come, position
        while waiting or left:
            while waiting and free:
                slot, chat = free.pop(), waiting.popleft()
                self._decode(context, [(token, at, slot) for at, token in enumerate(chat.prompt)])
                left[slot] = chat.out - 1, len(chat.prompt)
            rows = [(self._next(context, slot, at), at, slot) for slot, (_, at) in left.items()]
            self._decode(context, rows, all_logits=True)
            for slot, (count, at) in list(left.items()):
                left[slot] = count - 1, at + 1
                if count <= 1:
                    del left[slot]
                    llama.llama_memory_seq_rm(llama.llama_get_memory(context), slot, -1, -1)
                    free.append(slot)
        llama.llama_free(context)

    def _next(self, context: Any, slot: int, at: int) -> int:
        """Any token: what is sampled does not matter for the time."""
        return (7919 * (slot + 1) + 31 * at) % int(self._vocabulary)

    def _decode(
        self, context: Any, rows: list[tuple[int, int, int]], *, all_logits: bool = False
    ) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, slot) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, slot
            batch.logits[index] = all_logits or index == len(rows) - 1
        assert llama.llama_decode(context, batch) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    measure("llama.cpp", Llama(arguments.file, arguments.threads).run, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
