"""`headway.ray.Predict` in Ray Data, on a real Ray of this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")
data = pytest.importorskip("ray.data", reason="Ray Data is not installed")

from local_ray import local_ray  # noqa: E402

import headway.ray  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

MODEL = """
import headway


class Length(headway.Model[str, int]):
    def size(self, text: str) -> int:
        return len(text)

    def predict(self, texts: list[str]) -> list[int]:
        for text in texts:
            if text == "bad":
                raise headway.InvalidInput("not this one")
        return [len(text) for text in texts]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "ray_texts.py").write_text(MODEL)
    with local_ray(folder, num_cpus=2):
        yield folder


def predicted(rows: list[dict[str, Any]], blocks: int) -> Any:
    return data.from_items(rows, override_num_blocks=blocks).map_batches(
        headway.ray.Predict,
        fn_constructor_args=("ray_texts:Length",),
        fn_constructor_kwargs={"output": "length"},
        batch_size=None,
        compute=data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )


def test_every_row_is_answered_once_and_bad_ones_are_marked(cluster: Path) -> None:
    rows = [{"id": n, "text": "x" * (n % 50 + 1) if n % 97 else "bad"} for n in range(5000)]
    found = predicted(rows, blocks=5).take_all()
    assert sorted(each["id"] for each in found) == list(range(5000))
    for each in found:
        if each["text"] == "bad":
            assert each["length"] is None or each["length"] != each["length"]  # NaN in pandas
            assert "not this one" in each["error"]
        else:
            assert each["length"] == len(each["text"])
            assert each["error"] == ""
