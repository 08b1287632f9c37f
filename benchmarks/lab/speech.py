"""Speech over HTTP: sixteen clips of 3 to 30 seconds at once, beside one at a time, on one core."""

import asyncio
import io
import statistics
import time
from typing import Any

import numpy

from benchmarks.report import Bar, Benchmark, Report
from benchmarks.serving import Running, serving

CLIPS = 16
RATE = 16_000
_LEAST_S, _MOST_S = 3.0, 30.0
_PAUSE = 0.06  # seconds that are kept on either side of what is said
_BAR = 2.0


def speech(quick: bool) -> Report:
    clips, seconds = _clips()
    rounds = 1 if quick else 2
    alone_s, together_s, is_equal = [], [], True
    with serving("headway-speech") as server:
        _wait_ready(server)
        _heard(server, clips, at_once=True)
        for _ in range(rounds):
            took, texts = _heard(server, clips, at_once=False)
            alone_s.append(took)
            took, same = _heard(server, clips, at_once=True)
            together_s.append(took)
            is_equal &= same == texts
    alone, together = statistics.median(alone_s), statistics.median(together_s)
    words = sum(len(text.split()) for text in texts)
    return Report(
        title="Speech: 16 clips of 3 to 30 s, `moonshine` on one core",
        header=["", "seconds", "clips a second", "seconds of speech a second"],
        rows=[
            ["one at a time", f"{alone:.1f}", f"{CLIPS / alone:.2f}", f"{seconds / alone:.1f}"],
            ["at once", f"{together:.1f}", f"{CLIPS / together:.2f}", f"{seconds / together:.1f}"],
        ],
        bars=[
            Bar(f"at once ≥ {_BAR:g}×", f"{alone / together:.2f}×", alone / together >= _BAR),
            Bar("the same texts", "equal" if is_equal else "different", is_equal),
        ],
        notes=[
            f"{seconds:.0f} s of speech, {words / seconds:.1f} words a second: the recording that "
            "comes with the weights, its pauses shortened, repeated and cut anywhere; lengths grow "
            "by the same factor from clip to clip",
            f"over HTTP, `/v1/audio/transcriptions`; median of {rounds}",
            "the encoder is the same work in both (its matrices are large enough for one clip to "
            "fill the core); what a batch shares is the decoder, which reads all its weights for "
            "every token",
        ],
    )


def _wait_ready(server: Running) -> None:
    """It listens before its model is loaded."""
    import httpx

    for _ in range(600):
        if httpx.get(f"http://127.0.0.1:{server.port}/v2/health/ready").is_success:
            return
        time.sleep(0.1)
    raise RuntimeError("the model does not become ready")


def _clips() -> tuple[list[bytes], float]:
    """Files of 3 to 30 seconds, and how long they are together."""
    import soundfile

    from headway.models.ready.speech.moonshine import MOONSHINE_WEIGHTS

    voice, _ = soundfile.read(MOONSHINE_WEIGHTS.find() / "test-data" / "beckett.wav")
    frame = RATE // 50
    frames = voice[: len(voice) // frame * frame].reshape(-1, frame)
    is_loud = (numpy.abs(frames).max(axis=1) > 0.02).astype(float)
    around = numpy.ones(2 * int(_PAUSE * 50) + 1)
    dense = numpy.tile(frames[numpy.convolve(is_loud, around, "same") > 0].ravel(), 12)
    chance = numpy.random.default_rng(0)
    lengths = chance.permutation(numpy.geomspace(_LEAST_S, _MOST_S, CLIPS))
    clips = []
    for length in lengths:
        start = int(chance.uniform(0, 5) * RATE)
        file = io.BytesIO()
        part = dense[start : start + int(length * RATE)]
        soundfile.write(file, part, RATE, format="WAV", subtype="PCM_16")
        clips.append(file.getvalue())
    return clips, float(lengths.sum())


def _heard(server: Running, clips: list[bytes], *, at_once: bool) -> tuple[float, list[str]]:
    """How long it took, and the texts."""
    import openai

    async def run() -> tuple[float, list[str]]:
        url = f"http://127.0.0.1:{server.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def text_of(clip: bytes) -> str:
                found: Any = await client.audio.transcriptions.create(
                    model="moonshine", file=("clip.wav", clip)
                )
                return str(found.text)

            started = time.perf_counter()
            if at_once:
                texts = list(await asyncio.gather(*map(text_of, clips)))
            else:
                texts = [await text_of(clip) for clip in clips]
            return time.perf_counter() - started, texts

    return asyncio.run(run())


BENCHMARKS: dict[str, Benchmark] = {"speech": speech}
