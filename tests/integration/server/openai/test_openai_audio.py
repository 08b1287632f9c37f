"""Speech through the unmodified `openai` client, on the real model; and over v2."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from real_server import Server, served

openai = pytest.importorskip("openai")
soundfile = pytest.importorskip("soundfile")
httpclient = pytest.importorskip("tritonclient.http")

from headway.cli.main import main  # noqa: E402 - likewise
from headway.models.ready.speech.moonshine import MOONSHINE_WEIGHTS  # noqa: E402 - once its needs are there

if not MOONSHINE_WEIGHTS.is_installed:
    pytest.skip("the weights are not installed", allow_module_level=True)

TEXT = "Ever tried ever failed, no matter try again fail again fail better."
PARTS = ("ever tried", "ever failed", "no matter", "try again", "fail again", "fail better")
MAX_S = 60


@pytest.fixture(scope="module")
def beckett() -> bytes:
    return (MOONSHINE_WEIGHTS.find() / "test-data" / "beckett.wav").read_bytes()


@pytest.fixture(scope="module")
def voice(beckett: bytes) -> Any:
    return soundfile.read(io.BytesIO(beckett), dtype="float32")[0]


@pytest.fixture(scope="module")
def moonshine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("moonshine")
    models = [("moonshine", ""), ("samples", 'takes = "samples"')]
    (folder / "headway.toml").write_text(
        "[server]\nport = 0\ngrpc_port = -1\n"
        + "".join(
            f'[[models]]\nname = "{name}"\ntarget = "moonshine"\nwarm_up = false\n'
            f"[models.options]\nmax_seconds = {MAX_S}\n{more}\n"
            for name, more in models
        )
        + '[[models]]\nname = "upper"\ntarget = "served_models:Upper"\n'
    )
    with served(folder, "headway.toml") as running:
        yield running


@pytest.fixture(scope="module")
def client(moonshine: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{moonshine.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def transcribe(client: Any, content: bytes, name: str = "clip.wav", **options: Any) -> Any:
    options.setdefault("model", "moonshine")
    return client.audio.transcriptions.create(file=(name, content), **options)


def file_of(
    samples: Any, rate: int = 16_000, *, kind: str = "WAV", subtype: str = "PCM_16"
) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def at_rate(samples: Any, rate: int) -> Any:
    import soxr

    return soxr.resample(samples, 16_000, rate)


# ---- what is heard


def test_a_clip_becomes_its_text(client: Any, beckett: bytes) -> None:
    found = transcribe(client, beckett)
    assert found.text == TEXT
    assert found.usage.type == "duration"
    assert found.usage.seconds == 10


def test_the_async_client_hears_the_same(moonshine: Server, beckett: bytes) -> None:
    async def main() -> str:
        url = f"{moonshine.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            found = await client.audio.transcriptions.create(
                model="moonshine", file=io.BytesIO(beckett)
            )
            return str(found.text)

    assert asyncio.run(main()) == TEXT


@pytest.mark.parametrize(
    ("kind", "subtype", "rate", "channels"),
    [
        ("WAV", "PCM_U8", 16_000, 1),
        ("WAV", "PCM_24", 48_000, 2),
        ("WAV", "PCM_32", 44_100, 1),
        ("WAV", "FLOAT", 8_000, 1),
        ("WAV", "DOUBLE", 22_050, 2),
        ("WAV", "ULAW", 16_000, 1),
        ("WAVEX", "PCM_16", 96_000, 6),
        ("FLAC", "PCM_16", 16_000, 1),
        ("OGG", "VORBIS", 44_100, 2),
        ("MP3", "MPEG_LAYER_III", 44_100, 1),
    ],
)
def test_any_usual_kind_of_file_is_heard(
    client: Any, voice: Any, kind: str, subtype: str, rate: int, channels: int
) -> None:
    sound = at_rate(voice, rate)
    if channels > 1:
        sound = numpy.stack([sound] * channels, axis=1)
    content = file_of(sound, rate, kind=kind, subtype=subtype)
    found = transcribe(client, content, f"clip.{kind.lower()}").text.lower()
    heard = [part for part in PARTS if part.replace(" ", "") in found.replace(" ", "")]
    assert len(heard) >= 4, found  # 8 bits and 4 kHz of bandwidth leave less to hear


def test_eight_clips_at_once_say_what_each_says_alone(moonshine: Server, voice: Any) -> None:
    clips = [file_of(voice[: 16_000 * seconds // 2]) for seconds in range(4, 20, 2)]

    async def main() -> tuple[list[str], list[str]]:
        url = f"{moonshine.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def text_of(clip: bytes) -> str:
                found = await client.audio.transcriptions.create(
                    model="moonshine", file=("clip.wav", clip)
                )
                return str(found.text)

            together = await asyncio.gather(*map(text_of, clips))
            return list(together), [await text_of(clip) for clip in clips]

    together, alone = asyncio.run(main())
    assert together == alone
    assert len(set(alone)) > 4


def test_a_clip_longer_than_the_model_hears_at_once_is_cut_at_pauses(
    client: Any, voice: Any
) -> None:
    found = transcribe(client, file_of(numpy.tile(voice, 5)), response_format="verbose_json")
    assert found.duration == pytest.approx(5 * len(voice) / 16_000)
    assert found.segments[0].start == 0
    ends = [each.end for each in found.segments]
    assert len(ends) >= 2
    assert ends[-1] == pytest.approx(found.duration)
    assert found.text == " ".join(each.text for each in found.segments)
    assert found.text.lower().count("fail better") >= 4


def test_silence_has_no_text(client: Any) -> None:
    assert transcribe(client, file_of(numpy.zeros(48_000))).text == ""


def test_a_very_short_clip_is_no_error(client: Any, voice: Any) -> None:
    assert isinstance(transcribe(client, file_of(voice[:100])).text, str)


# ---- how it is answered


def test_every_format_says_the_same(client: Any, beckett: bytes) -> None:
    assert transcribe(client, beckett, response_format="text").strip() == TEXT
    verbose = transcribe(client, beckett, response_format="verbose_json", language="en")
    assert (verbose.text, verbose.language, verbose.task) == (TEXT, "en", "transcribe")
    assert verbose.duration == pytest.approx(9.963, abs=0.001)
    [segment] = verbose.segments
    assert (segment.id, segment.start, segment.text) == (0, 0.0, TEXT)
    srt = transcribe(client, beckett, response_format="srt")
    assert srt == f"1\n00:00:00,000 --> 00:00:09,963\n{TEXT}\n"
    vtt = transcribe(client, beckett, response_format="vtt")
    assert vtt == f"WEBVTT\n\n00:00:00.000 --> 00:00:09.963\n{TEXT}\n"


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"response_format": "xml"}, "response_format: 'xml' is not one of json, text"),
        ({"temperature": 0.5}, "temperature: only 0"),
        ({"prompt": "A play"}, "prompt:"),
        ({"language": "de"}, "language: 'de' is not supported; there are: en"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities: 'word'"),
        ({"model": "upper"}, "'upper' does not transcribe"),
        (
            {"timestamp_granularities": ["segment"]},
            "timestamp_granularities: needs",
        ),
        ({"include": ["logprobs"]}, "include: 'logprobs'"),
        ({"chunking_strategy": {"type": "server_vad"}}, "chunking_strategy"),
        ({"extra_body": {"known_speaker_names": ["me"]}}, "known_speaker_names"),
        ({"extra_body": {"stream": "perhaps"}}, "stream:"),
        ({"stream": True, "response_format": "srt"}, "stream:"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_wrong_parameter_is_a_bad_request(
    client: Any, beckett: bytes, options: dict[str, Any], part: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        transcribe(client, beckett, **options)
    assert part in caught.value.message
    assert (caught.value.type, caught.value.code) == ("invalid_request_error", "invalid_input")


def test_an_unknown_model_is_not_found(client: Any, beckett: bytes) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        transcribe(client, beckett, model="whisper-1")
    assert caught.value.code == "model_not_found"


def lying_wav() -> bytes:
    """Its head promises four gigabytes."""
    content = bytearray(file_of(numpy.zeros(100)))
    content[40:44] = (2**32 - 2).to_bytes(4, "little")
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "the audio file is empty"),
        (b"hello, this is no audio at all", "not readable audio (wav, flac, ogg, mp3)"),
        (b"RIFF\xff\xff\xff\xffWAVE", "not readable audio"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not readable audio"),
        (file_of(numpy.zeros(0)), "no samples"),
        (file_of(numpy.full(1600, numpy.nan), subtype="FLOAT"), "not finite"),
        (file_of(numpy.zeros((10, 64))), "64 channels; at most 32"),
        (file_of(numpy.zeros(10), 500), "500 samples a second"),
    ],
    ids=["empty", "text", "only a head", "image", "no samples", "nan", "channels", "rate"],
)
def test_what_is_not_audio_is_a_bad_request(client: Any, content: bytes, part: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        transcribe(client, content)
    assert part in caught.value.message
    assert caught.value.code == "invalid_input"


def test_a_head_that_promises_too_much_is_not_believed(client: Any) -> None:
    assert transcribe(client, lying_wav()).text == ""


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_too_long_a_clip_is_refused_with_the_limit(client: Any, kind: str) -> None:
    content = file_of(numpy.zeros((MAX_S + 1) * 16_000), kind=kind)
    with pytest.raises(openai.APIStatusError) as caught:
        transcribe(client, content)
    assert caught.value.status_code == 413
    assert f"longer than {MAX_S} seconds" in caught.value.message
    assert caught.value.code == "input_too_large"


def test_a_small_file_that_unpacks_to_hours_is_refused(client: Any) -> None:
    bomb = file_of(numpy.zeros((3600 * 8_000, 1)), 8_000, kind="FLAC")
    wide = file_of(numpy.zeros((50 * 96_000, 8)), 96_000, kind="FLAC")
    assert len(bomb) < 2**20
    for content in (bomb, wide):
        with pytest.raises(openai.APIStatusError) as caught:
            transcribe(client, content)
        assert caught.value.status_code == 413


FORM = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nmoonshine\r\n'


@pytest.mark.parametrize(
    ("kind", "body", "status", "part"),
    [
        ("application/json", b"{}", 400, "must be multipart/form-data"),
        ("multipart/form-data", b"", 400, "with a boundary"),
        (FORM, b"", 400, "cannot be read"),
        (FORM, b"nothing", 400, "cannot be read"),
        (FORM, PART, 400, "cannot be read"),  # it does not end
        (FORM, b"--x--\r\n", 400, "model: is missing"),
        (FORM, PART + b"--x--\r\n", 400, "file: the file is missing"),
        (FORM, PART * 2 + b"--x--\r\n", 400, "model: is given 2 times"),
        (FORM, PART.replace(b"moonshine", b"\xff") + b"--x--\r\n", 400, "cannot be read"),
        (FORM, PART.replace(b"moonshine", b"m" * 2**17) + b"--x--\r\n", 413, "at most 65536"),
        (FORM, PART * 100 + b"--x--\r\n", 413, "at most 64 parts"),
        (
            FORM,
            PART + PART.replace(b"model", b"file") + b"--x--\r\n",
            400,
            "a file with a name is expected",
        ),
    ],
    ids=[
        *("json", "no boundary", "empty", "nothing", "cut", "no model", "no file", "two models"),
        *("not a text", "large field", "many parts", "file is a field"),
    ],
)
def test_a_form_that_cannot_be_is_refused_in_openais_shape(
    moonshine: Server, kind: str, body: bytes, status: int, part: str
) -> None:
    answer = moonshine.http.post(
        "/v1/audio/transcriptions", content=body, headers={"content-type": kind}
    )
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert part in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}


# ---- other doors


def test_v2_takes_files_as_bytes_and_samples_as_float32(
    moonshine: Server, beckett: bytes, voice: Any
) -> None:
    with httpclient.InferenceServerClient(moonshine.address) as client:
        file = httpclient.InferInput("audio", [1, 1], "BYTES")
        file.set_data_from_numpy(numpy.array([[beckett]], dtype=object))
        found = client.infer("moonshine", [file])
        assert found.as_numpy("text").ravel().tolist() == [TEXT.encode()]
        samples = httpclient.InferInput("audio", [2, len(voice)], "FP32")
        samples.set_data_from_numpy(numpy.stack([voice, numpy.zeros_like(voice)]))
        found = client.infer("samples", [samples])
        assert found.as_numpy("text").ravel().tolist() == [TEXT.encode(), b""]
        slow = at_rate(voice, 8_000)
        samples = httpclient.InferInput("audio", [1, len(slow)], "FP32")
        samples.set_data_from_numpy(slow[None])
        found = client.infer("samples", [samples], parameters={"sample_rate": 8_000})
        assert b"fail again" in found.as_numpy("text").ravel()[0].lower()


def test_the_plain_route_takes_a_file_in_base64(moonshine: Server, beckett: bytes) -> None:
    import base64

    body = json.dumps(base64.b64encode(beckett).decode())
    answer = moonshine.http.post("/v1/predict/moonshine", content=body)
    assert answer.json() == TEXT


def test_it_is_listed(tmp_path: Path) -> None:
    from headway.models.catalogue import catalogue

    entry = catalogue()["moonshine"]
    assert (entry.install, entry.weights) == ("headway[moonshine]", MOONSHINE_WEIGHTS)
    assert entry.weights.is_installed


# ---- streams


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_stream_has_a_delta_for_each_part_and_then_the_whole(
    client: Any, voice: Any, form: str
) -> None:
    long = file_of(numpy.concatenate([voice, numpy.zeros(16_000, numpy.float32), voice] * 2))
    events = list(transcribe(client, long, stream=True, response_format=form))
    *deltas, done = events
    assert {each.type for each in deltas} == {"transcript.text.delta"}
    assert len(deltas) > 1  # it is longer than the model hears at once
    assert done.type == "transcript.text.done"
    assert "".join(each.delta for each in deltas) == done.text
    assert done.text == transcribe(client, long).text


def test_a_stream_of_silence_has_no_delta(client: Any) -> None:
    [done] = transcribe(client, file_of(numpy.zeros(16_000, numpy.float32)), stream=True)
    assert (done.type, done.text) == ("transcript.text.done", "")


# ---- Hugging Face's client


def test_the_hubs_client_recognises_speech(moonshine: Server, beckett: bytes) -> None:
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(f"{moonshine.url}/models/moonshine", token="none", timeout=60)
    assert client.automatic_speech_recognition(beckett).text == TEXT
    timed = client.automatic_speech_recognition(beckett, extra_body={"return_timestamps": True})
    assert timed.text == TEXT
    assert timed.chunks[0]["timestamp"][0] == 0
    with pytest.raises(hub.errors.HfHubHTTPError, match="generation_parameters"):
        client.automatic_speech_recognition(beckett, extra_body={"generation_parameters": {}})


@pytest.mark.parametrize("own", [True, False])
def test_bench_sends_clips(
    moonshine: Server,
    beckett: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    own: bool,
) -> None:
    (tmp_path / "a.wav").write_bytes(beckett)
    sent = ("--body", str(tmp_path / "a.wav")) if own else ("--lengths", "1")
    load = ("--rate", "2", "--arrivals", "constant", "--seconds", "1.1", "--warm-up", "0", "--json")
    main(["bench", moonshine.url, "--api", "transcriptions", "--model", "moonshine", *sent, *load])
    [point] = json.loads(capsys.readouterr().out)
    assert point["answered"] > 0
    assert point["errors"] == {}
