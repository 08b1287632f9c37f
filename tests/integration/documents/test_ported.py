"""Model files written for LitServe and FastAPI: few lines changed, served and called."""

import base64
import difflib
import io
import re
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest
from PIL import Image
from small_server import serving

import headway
from headway import ConfigError
from headway.compat import litserve
from headway.models import catalogue

PORTED = Path(__file__).parents[3] / "examples" / "ported"
NAMES = sorted(path.stem for path in PORTED.glob("*.py"))
MOST_LINES = 3


def png(colour: str = "white", size: tuple[int, int] = (64, 32)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setparams((1, 2, 8000, 0, "NONE", ""))
        clip.writeframes(numpy.full(800, 16384, "<i2").tobytes())
    return file.getvalue()


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def opened(answer: httpx.Response) -> Any:
    assert answer.headers["content-type"] == "image/png"
    return Image.open(io.BytesIO(answer.content))


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.strip()]


SETOSA = [5.1, 3.5, 1.4, 0.2]
Check = Callable[[httpx.Response], bool]
CALLS: dict[str, tuple[str, dict[str, Any], Check]] = {
    "lit_square": ("SquareAPI", {"json": {"input": 4}}, lambda a: a.json() == {"output": 16}),
    "lit_sklearn": (
        "IrisAPI",
        {"json": {"features": SETOSA}},
        lambda a: a.json()["species"] == "setosa",
    ),
    "lit_image": (
        "BrightnessAPI",
        {"json": {"image_bytes": text(png())}},
        lambda a: a.json() == {"brightness": 1.0},
    ),
    "lit_audio": (
        "LoudnessAPI",
        {"json": {"audio": text(wav())}},
        lambda a: a.json() == {"rms": 0.5, "is_silent": False},
    ),
    "lit_stream": (
        "WordsAPI",
        {"json": {"prompt": "a cat"}},
        lambda a: a.text == 'data: {"output":"A"}\n\ndata: {"output":"CAT"}\n\n',
    ),
    "fast_pydantic": (
        "total",
        {"json": {"lines": [{"name": "tea", "price": 2, "quantity": 3}], "discount": 0.5}},
        lambda a: a.json() == {"total": 3.0, "lines": 1},
    ),
    "fast_sklearn": (
        "predict",
        {"json": {"features": [0.0] * 10}},
        lambda a: 100 < a.json()["progression"] < 200,
    ),
    "fast_dict": (
        "sentiment",
        {"json": {"text": "a good day"}},
        lambda a: a.json()["label"] == "positive",
    ),
    "fast_image": ("thumbnail", {"files": {"file": png()}}, lambda a: opened(a).size == (32, 16)),
}


@pytest.fixture(autouse=True)
def among_the_ported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PORTED))
    for name in NAMES:
        sys.modules.pop(name, None)


def test_there_are_nine_and_each_is_called() -> None:
    assert len(NAMES) == 9
    assert sorted(CALLS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_few_lines_were_changed(name: str) -> None:
    before, after = lines_of(PORTED / "originals" / f"{name}.py"), lines_of(PORTED / f"{name}.py")
    steps = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = sum(
        max(stop - start, new_stop - new_start)
        for kind, start, stop, new_start, new_stop in steps
        if kind != "equal"
    )
    assert 0 < changed <= MOST_LINES


SQUARE = (PORTED / "lit_square.py").read_text().replace("port=8000", "port=0")


@pytest.mark.real_time
@pytest.mark.parametrize("main", [SQUARE, "import lit_square, run\nrun.main()\n"])
def test_a_file_for_litserve_is_served_by_its_own_last_line(tmp_path: Path, main: str) -> None:
    """Or by another file, which imports its class."""
    run = "import headway.compat.litserve as ls, lit_square\n\ndef main():\n"
    run += "    ls.LitServer(lit_square.SquareAPI()).run(port=0)\n"
    for name, text in (("lit_square", SQUARE), ("run", run), ("main", main)):
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, str(tmp_path / "main.py")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            [url] = next(
                found for line in process.stderr if (found := re.findall(r"http://\S+", line))
            )
            answer = httpx.post(f"{url}/predict", json={"input": 4})
            assert answer.json() == {"output": 16}
        finally:
            process.terminate()


def test_a_file_that_starts_a_server_when_it_is_imported_is_told_what_to_write(
    tmp_path: Path,
) -> None:
    unguarded = SQUARE.replace('if __name__ == "__main__":', "if True:")
    (tmp_path / "unguarded_square.py").write_text(unguarded)
    with pytest.raises(ConfigError, match='write `if __name__ == "__main__":` above LitServer'):
        catalogue.build(f"{tmp_path}/unguarded_square.py:SquareAPI", {})


def test_an_option_of_litserve_is_obeyed_needless_or_refused() -> None:
    api: Any = catalogue.build("lit_square:SquareAPI", {})
    litserve.LitServer(api, accelerator="gpu", batch_timeout=0.05, callbacks=None)
    assert api.device == "cuda"
    for wrong in ({"middlewares": [object()]}, {"bach_timeout": 1}, {"accelerator": "tpu"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            litserve.LitServer(api, **wrong)
    with pytest.raises(ConfigError, match="reload"):
        litserve.LitServer(api).run(port=0, reload=True)


@pytest.mark.real_time
@pytest.mark.parametrize("name", NAMES)
async def test_each_is_served_and_called(name: str) -> None:
    thing, given, check = CALLS[name]
    model = catalogue.build(f"{name}:{thing}", {})
    async with serving(model=model) as http:
        answer = await http.post("/v1/predict/model", **given)
        assert answer.status_code == 200, answer.text
        assert check(answer), answer.text


@pytest.mark.real_time
async def test_their_checks_hold_as_before() -> None:
    model = catalogue.build("fast_pydantic:total", {})
    async with serving(model=model) as http:
        answer = await http.post("/v1/predict/model", json={"lines": [{"name": "tea", "price": 0}]})
        assert answer.status_code == 400
        assert "input 'lines.0.price': Input should be greater than 0" in answer.json()["error"]


@pytest.mark.real_time
async def test_single_runs_each_value_of_a_batch_by_itself() -> None:
    class Both(headway.Model[int, Any]):
        @headway.single
        def predict(self, item: int) -> int:
            return 2 * item

        @headway.single
        def stream(self, item: int) -> Any:
            yield from range(item)

    async with headway.Batcher(Both()) as batcher:
        assert await batcher.many([1, 2]) == [2, 4]
        assert [chunk async for chunk in batcher.stream(3)] == [0, 1, 2]
