"""A model that is not our own definition proves itself before it answers.

First, that attention is all that joins its rows: tokens side by side, at positions all over the
context, give to attention what each gives by itself. Then a few sequences of seeded tokens are
generated as they are when it serves: in company, in chunks, across the borders of pages. Each
logprob is compared with what transformers computes for that sequence alone.

In float32 they differ by 2e-3 at most. In bf16 a logit's own rounding is larger than that, and
experts may change places; so the middle error of each sequence is compared with what transformers'
two ways to attend (eager and sdpa) differ by. What passed is noted in the cache folder, by a hash
of the configuration and of all that computes it: weights do not change what is computed.
"""

import json
import platform
import statistics
from pathlib import Path
from typing import Any

import torch

from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Logprobs, Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.engine.cpu.runner import CpuRunner
from headway.engine.decoders.transformers import TransformersDecoder
from headway.errors import ConfigError, HeadwayError
from headway.files import ProofNote

_LENGTHS = (1, 15, 33, 47)  # of the prompts: within a page, at its border, longer than a chunk
_GENERATED = 6
_STEP_TOKENS = 24
_BLOCK_SIZE = 16
_TOP = 8  # logprobs that are compared for each token
_MOST = 2e-3  # float32
_NOISE = 4.0  # times what transformers itself differs by
_ROUNDING = 2.0**-8  # of a logit in bf16
_SEED = 20261118


def prove(decoder: TransformersDecoder) -> None:
    """Raises ConfigError with the first difference."""
    note = _note(decoder)
    if note.read() is not None:
        return
    try:
        _check_rows(decoder)
        _check_answers(decoder)
    except HeadwayError as error:
        raise ConfigError(f"{decoder.folder}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{decoder.folder}: its proof failed: {error!r}") from error
    note.write(str(decoder.config.get("model_type")))


# ---- rows by themselves


def _check_rows(decoder: TransformersDecoder) -> None:
    last = decoder.longest - 1
    positions = torch.tensor([last, 0, last // 2, 1, min(7, last)])
    ids = _tokens(decoder, len(positions), 0)
    together, logits = decoder.observe(ids, positions)
    most = 1e-3 if decoder.dtype == torch.float32 else 0.1
    for row in range(len(positions)):
        one = slice(row, row + 1)
        alone, own = decoder.observe(ids[one], positions[one])
        for index, layer in alone.items():
            for name, ours, expected in zip(layer._fields, together[index], layer, strict=True):
                if _distance(ours[one], expected) > most:
                    raise ConfigError(
                        f"layer {index}: the {name} of a token at position {int(positions[row])} "
                        "differ in a batch from those alone"
                    )
        if _distance(logits[one], own) > most:
            raise ConfigError("the logits of a token depend on tokens of other sequences")


def _distance(ours: torch.Tensor, expected: torch.Tensor) -> float:
    difference = (ours.float() - expected.float()).norm()
    return float(difference / expected.float().norm().clamp(min=1e-6))


# ---- whole answers


def _check_answers(decoder: TransformersDecoder) -> None:
    prompts = [
        _tokens(decoder, max(1, min(length, decoder.longest - _GENERATED)), number + 1)
        for number, length in enumerate(_LENGTHS)
    ]
    count = min(_GENERATED, decoder.longest - 1)
    answers = _answers(decoder, prompts, count)
    for prompt, (tokens, logprobs) in zip(prompts, answers, strict=True):
        _compare(decoder, prompt, tokens, logprobs)


def _compare(
    decoder: TransformersDecoder, prompt: torch.Tensor, tokens: list[int], logprobs: list[Logprobs]
) -> None:
    ids = torch.cat([prompt, torch.tensor(tokens[:-1], dtype=torch.int64)])
    logits = decoder.alone(ids, len(tokens), "eager")
    expected = logits.log_softmax(-1)
    bounds = [_MOST] * len(tokens)
    errors = [_error(line, each) for line, each in zip(expected, logprobs, strict=True)]
    if decoder.dtype != torch.float32:
        middle = statistics.median(errors)
        errors, bounds = [middle], [_noise(decoder, ids, logits, logprobs)]
    for number, (error, bound) in enumerate(zip(errors, bounds, strict=True)):
        if not error <= bound:
            token, ours = logprobs[number].top[0]
            raise ConfigError(
                f"after a prompt of {len(prompt)} tokens, answer token {number} is not what "
                f"transformers computes alone: token {token} has logprob {ours:.4f}, expected "
                f"{float(expected[number][token]):.4f} (within {bound:.2g})"
            )


def _error(expected: torch.Tensor, logprobs: Logprobs) -> float:
    """The largest difference; and how much likelier another token is to transformers."""
    tokens = torch.tensor([token for token, _ in logprobs.top])
    ours = torch.tensor([value for _, value in logprobs.top])
    missed = expected.max() - expected[tokens[0]]
    return float(torch.maximum((ours - expected[tokens]).abs().max(), missed))


def _noise(
    decoder: TransformersDecoder, ids: torch.Tensor, eager: torch.Tensor, logprobs: list[Logprobs]
) -> float:
    count = len(logprobs)
    rounding = _ROUNDING * float(eager.abs().max())
    try:
        other = decoder.alone(ids, count, "sdpa").log_softmax(-1)
    except Exception:  # noqa: BLE001  it has no sdpa: rounding alone is the floor
        return _NOISE * rounding
    own = eager.log_softmax(-1)
    differences = [
        float((a - b)[[token for token, _ in each.top]].abs().max())
        for a, b, each in zip(own, other, logprobs, strict=True)
    ]
    return _NOISE * max(statistics.median(differences), rounding)


def _answers(
    decoder: TransformersDecoder, prompts: list[torch.Tensor], count: int
) -> list[tuple[list[int], list[Logprobs]]]:
    pages = -(-(max(map(len, prompts)) + count) // _BLOCK_SIZE) + 1
    limits = EngineLimits(
        blocks=pages * len(prompts),
        block_size=_BLOCK_SIZE,
        max_context=pages * _BLOCK_SIZE,
        max_sequences=len(prompts),
        step_tokens=_STEP_TOKENS,
        adapter_slots=0,
    )
    runner, scheduler = CpuRunner(decoder, limits), GenerationScheduler(limits)
    answers: list[tuple[list[int], list[Any]]] = [([], []) for _ in prompts]
    for number, prompt in enumerate(prompts):
        asked = tuple(prompt.tolist())
        scheduler.submit(Sequence(number, float(number), asked, max_tokens=count))
        top = min(_TOP, decoder.vocabulary)
        runner.add(number, asked, Sampling(temperature=0.0, logprobs=top))
    while scheduler.running or scheduler.waiting:
        step = scheduler.next_step(0.0)
        assert isinstance(step, Step)
        sampled = runner.run(step)
        for number, token, logprobs in zip(
            step.sampled, sampled.tokens, sampled.logprobs, strict=True
        ):
            answers[number][0].append(token)
            answers[number][1].append(logprobs)
        scheduler.complete(step, sampled.tokens)
    return answers


def _tokens(decoder: TransformersDecoder, count: int, number: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(_SEED + number)
    return torch.randint(0, decoder.vocabulary, (count,), generator=chance)


# ---- earlier proofs


def _note(decoder: TransformersDecoder) -> ProofNote:
    import transformers

    config = {name: each for name, each in decoder.config.items() if name != "_name_or_path"}
    engine = Path(__file__).parents[1]
    return ProofNote(
        sorted([*engine.rglob("*.py"), *engine.rglob("*.[ch]")]),
        json.dumps(config, sort_keys=True, default=str),
        *(torch.__version__, transformers.__version__),
        *(platform.machine(), platform.python_version()),
        *(decoder.dtype, decoder.longest),
        None if decoder.kernels is None else decoder.kernels.instructions,
    )
