"""The GPU's runner against the CPU's. On a GPU, or anywhere with TRITON_INTERPRET=1."""

import os
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="no Triton here: the kernels are not tested")
if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("neither a GPU nor TRITON_INTERPRET=1", allow_module_level=True)

from headway.core.generation.limits import EngineLimits  # noqa: E402
from headway.core.generation.sampling import Sampling  # noqa: E402
from headway.core.generation.scheduler import GenerationScheduler  # noqa: E402
from headway.core.generation.sequence import Sequence  # noqa: E402
from headway.core.generation.step import Decode, Prefill, Step  # noqa: E402
from headway.engine.architecture import LlamaSpec  # noqa: E402
from headway.engine.cpu.runner import CpuRunner  # noqa: E402
from headway.engine.decoders.llama import LlamaDecoder  # noqa: E402
from headway.engine.gpu.steps.decoder import GpuDecoder  # noqa: E402
from headway.engine.gpu.steps.graphs import MixedGraphSizes  # noqa: E402
from headway.engine.gpu.steps.inputs import MixedInputs, MixedSizes, inputs_at, sizes_of  # noqa: E402
from headway.engine.gpu.steps.runner import GpuRunner  # noqa: E402
from headway.engine.weights import random_tensors  # noqa: E402

# Triton's interpreter works with numpy before 2.4, which warns; and what only fills a step is
# computed from memory as it was found.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPEC = LlamaSpec.of(
    {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 50,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    }
)
PROMPTS = [tuple(range(3, 3 + count)) for count in (5, 21, 1, 30, 12)]
OUTPUTS = (4, 3, 5, 2, 4)


def texts_of(
    runner: "CpuRunner | GpuRunner",
    limits: EngineLimits,
    samplings: tuple[Sampling, ...] = (Sampling(temperature=0.0),),
) -> dict[int, list[int]]:
    """Steps are handed over as deep as the runner goes, as a server does it."""
    scheduler = GenerationScheduler(limits)
    texts: dict[int, list[int]] = {number: [] for number in range(len(PROMPTS))}
    for number, (prompt, count) in enumerate(zip(PROMPTS, OUTPUTS, strict=True)):
        scheduler.submit(Sequence(number, 0.0, prompt, count))
        runner.add(number, prompt, samplings[number % len(samplings)])
    under_way = []
    while True:
        step = scheduler.next_step(0.0)
        if isinstance(step, Step) and step.has_work:
            under_way.append((step, runner.start(step)))
            if len(under_way) < runner.depth:
                continue
        if not under_way:
            return texts
        done, running = under_way.pop(0)
        tokens = running.result().tokens
        for sequence, token in zip(done.sampled, tokens, strict=True):
            texts[sequence].append(token)
        scheduler.complete(done, tokens)


def tensors() -> "list[tuple[str, torch.Tensor]]":
    torch.manual_seed(0)
    drawn = random_tensors(SPEC, dtype=torch.float32, device="cpu")
    return [(name, each * 10 if each.ndim == 2 else each) for name, each in drawn]


def limits_of(step_tokens: int) -> EngineLimits:
    return EngineLimits(
        blocks=24, block_size=8, max_context=48, max_sequences=5, step_tokens=step_tokens
    )


def runners(limits: EngineLimits) -> tuple[CpuRunner, GpuRunner]:
    """Of the same weights."""
    given = tensors()
    plain = LlamaDecoder(SPEC, iter(given), dtype=torch.float32, max_context=48)
    decoder = GpuDecoder(SPEC, iter(given), dtype=torch.float32, device=DEVICE, max_context=48)
    runner = GpuRunner(decoder, limits)
    runner.warm_up()
    return CpuRunner(plain, limits), runner


@pytest.mark.parametrize("step_tokens", [12, 64])
def test_steps_of_any_size_give_the_texts_that_the_cpu_gives(step_tokens: int) -> None:
    limits = limits_of(step_tokens)
    plain, runner = runners(limits)
    wanted = texts_of(plain, limits)
    assert len({tuple(text) for text in wanted.values()}) > 2  # the weights do tell prompts apart
    assert texts_of(runner, limits) == wanted


def test_a_step_takes_the_smallest_graph_that_it_fits_into() -> None:
    sizes = MixedGraphSizes(step_tokens=8192, max_sequences=256)
    assert sizes.fitting(MixedSizes(282, 12, 1)) == MixedSizes(320, 64, 16)
    assert sizes.fitting(MixedSizes(17, 3, 16)) == MixedSizes(32, 8, 16)
    assert sizes.fitting(MixedSizes(40, 39, 1)) == MixedSizes(64, 64, 16)
    assert sizes.fitting(MixedSizes(2048, 200, 2)) == MixedSizes(2048, 256, 16)
    for without in (MixedSizes(2049, 1, 1), MixedSizes(300, 0, 17)):
        assert sizes.fitting(without) == without
    graphs = sizes.all()
    assert graphs[0].tokens == 2048
    assert all(sizes.fitting(each) == each for each in graphs)
    assert all(each.decodes <= each.tokens for each in graphs)


def test_what_a_step_does_not_fill_asks_nothing_of_anybody() -> None:
    decode = (Decode(7, 2, 9, (11,)), Decode(8, 0, 3, ()))
    prompts = (
        Prefill(9, 1, 0, (40, 41, 42), (12, 13), is_first=True, is_last=False),
        Prefill(10, 3, 4, (43, 44), (14,), is_first=False, is_last=True),
    )
    step = Step(1, decode, prompts, (), ())
    lengths, nobody = [1, 5, 2, 1], 6
    sizes = MixedSizes(16, 4, 3)
    host = torch.full((200,), -77, dtype=torch.int32)
    numbers, entries = MixedInputs(step, lengths, nobody).write(host, sizes)
    found = inputs_at(host, sizes)
    assert found.given.tolist() == [-1, -1, 40, 41, 42, 43, 44, *[0] * 9]
    assert found.slots.tolist() == [2, 0, 1, 1, 1, 3, 3, *[nobody] * 9]
    assert found.positions.tolist() == [9, 3, 0, 1, 2, 4, 5, *[-1] * 9]
    assert found.decode_lengths.tolist() == [10, 4, 0, 0]
    assert found.prompt_slots.tolist() == [1, 3, nobody]
    assert found.starts.tolist() == [2, 5, 7, 7]
    assert found.lengths.tolist() == [3, 6, 0]
    assert found.rows.tolist() == [0, 1, 6, 0, 0, 0, 0]
    assert found.row_slots.tolist() == [2, 0, 3, *[nobody] * 4]
    assert found.row_positions.tolist() == [10, 4, 6, 0, 0, 0, 0]
    joined = host[sizes.numbers : numbers].view(3, entries).T.tolist()
    assert joined == [[2, 2, 11], [1, 0, 12], [1, 1, 13], [3, 1, 14]]
    assert lengths == [1, 2, 3, 2]
    assert sizes_of(step) == MixedSizes(7, 2, 2)


def test_tokens_are_drawn_as_on_the_cpu_and_nobody_waits_for_the_host() -> None:
    """Those of top-k, top-p and min-p; penalties, biases and logprobs are the host's."""
    limits = limits_of(64)
    plain, runner = runners(limits)
    drawn = (
        Sampling(temperature=3.0, top_p=0.9, seed=1),
        Sampling(temperature=0.0, top_p=0.9, top_k=5),
        Sampling(temperature=4.0, top_k=7, seed=(1 << 64) - 1),
        Sampling(temperature=2.0, min_p=0.05, top_p=0.95, seed=-3),
    )
    settled: list[int] = []
    choose = runner.choose
    runner.choose = lambda *given: settled.append(1) or choose(*given)  # type: ignore[func-returns-value, method-assign, assignment]
    assert texts_of(runner, limits, drawn) == texts_of(plain, limits, drawn)
    assert not settled
    by_host = (*drawn, Sampling(temperature=2.0, top_p=0.9, repetition_penalty=1.3, seed=4))
    assert texts_of(runner, limits, by_host) == texts_of(plain, limits, by_host)
    assert settled


class EveryThird:
    """A grammar: of the tokens, those that are as many as were said, by three."""

    def allowed(self, generated: "list[int]") -> "numpy.ndarray[Any, Any]":
        return numpy.arange(SPEC.vocabulary) % 3 == len(generated) % 3


def test_answers_of_a_given_form_are_the_cpus() -> None:
    limits = limits_of(64)
    plain, runner = runners(limits)
    samplings = (
        Sampling(temperature=0.0, grammar="every third"),
        Sampling(temperature=0.0),
        Sampling(temperature=3.0, top_p=0.9, seed=2, grammar="every third"),
    )
    for each in (plain, runner):
        each.matcher_of = lambda _grammar: EveryThird()
    texts = texts_of(runner, limits, samplings)
    assert texts == texts_of(plain, limits, samplings)
    for number in (0, 2, 3):
        assert [token % 3 for token in texts[number]] == [
            place % 3 for place in range(len(texts[number]))
        ]
