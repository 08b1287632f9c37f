"""Model repositories for tests: small models that say which version they are."""

from pathlib import Path

MODEL = """
import pathlib
import headway
from headway import Tensor

class Marked(headway.TensorModel):
    inputs = [Tensor("x", "float32", (-1, 1))]
    outputs = [Tensor("mark", "int64", (-1, 1))]

    def load(self):
        self.mark = -1  # whoever sees this was answered by a model that is not ready
        {load}
        self.mark = {mark}

    def predict(self, batch):
        return {{"mark": (batch["x"] * 0 + self.mark).astype("int64")}}
"""


def write_version(root: Path, name: str, version: int, mark: int, *, load: str = "pass") -> Path:
    """Put a version in place. `load`: a line that runs while it is loaded."""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / ".model.py"
    written.write_text(MODEL.format(mark=mark, load=load))
    written.rename(folder / "model.py")  # whole or not at all, as a deployment would
    return folder


def write_settings(root: Path, name: str, text: str) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "model.toml").write_text(text)
