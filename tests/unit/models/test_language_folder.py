"""What config.json alone decides is decided at once: without an engine, and without torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.models.chat.model import LanguageModel

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"group_size": 64, "bits": 4, "zero_point": True}, "awq"),
        ({"group_size": 64, "bits": 4}, "MLX"),
        ({"any": 1}, "an unnamed method"),
    ],
)
def test_quantised_weights_are_refused_by_their_method(
    given: dict[str, Any], method: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": given}))
    with pytest.raises(ConfigError, match=f"weights quantised by {method} are not computed"):
        LanguageModel(str(tmp_path)).folder()


def test_torch_is_not_imported_for_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code = (
        "import sys; from headway.models.chat.model import LanguageModel; "
        f"LanguageModel({str(tmp_path)!r}).folder(); "
        "print(*{'torch', 'transformers'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
