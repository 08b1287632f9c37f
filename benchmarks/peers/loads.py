"""What every party is given: token ids in, how many tokens out, how many chats at once."""

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

VOCABULARY = 49_000
PROMPT, OUT = 48, 64
AT_ONCE = (1, 4, 16, 32)
MIXED_AT_ONCE, MIXED_CHATS, SHORTEST, LONGEST = 16, 48, 8, 128


@dataclass(frozen=True, slots=True)
class Chat:
    prompt: list[int]
    out: int


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    at_once: int
    chats: tuple[Chat, ...]

    @property
    def tokens(self) -> int:
        return sum(chat.out for chat in self.chats)

    @property
    def batches(self) -> list[tuple[Chat, ...]]:
        """As static batching has them: in order of arrival, each full."""
        starts = range(0, len(self.chats), self.at_once)
        return [self.chats[start : start + self.at_once] for start in starts]


def loads(seed: int) -> list[Load]:
    """New prompts for each seed: no run finds another's prefixes."""
    draw = random.Random(seed)

    def chat(out: int) -> Chat:
        return Chat([draw.randrange(10, VOCABULARY) for _ in range(PROMPT)], out)

    found = [Load(str(count), count, tuple(chat(OUT) for _ in range(count))) for count in AT_ONCE]
    lengths = [draw.randint(SHORTEST, LONGEST) for _ in range(MIXED_CHATS)]
    found.append(Load("mixed", MIXED_AT_ONCE, tuple(chat(out) for out in lengths)))
    return found


def measure(party: str, run: Callable[[Load], None], *, rounds: int) -> None:
    """One line for each load and round: tokens a second, from the first to the last."""
    run(Load("warm up", 2, tuple(Chat(each.prompt, 4) for each in loads(0)[1].chats[:2])))
    for number in range(1, rounds + 1):
        for load in loads(number):
            began = time.perf_counter()
            run(load)
            tok_s = load.tokens / (time.perf_counter() - began)
            line = {"party": party, "load": load.name, "tok_s": round(tok_s, 1)}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
