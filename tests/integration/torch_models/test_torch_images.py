"""A diffusion model that is trained here in seconds, served, and drawn from by the `openai` client.

`make test-torch` runs it. Its pictures are kept where pytest keeps temporary files: grid.png.
"""

import base64
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

if not os.environ.get("TEST_TORCH"):
    pytest.skip("make test-torch runs these", allow_module_level=True)
torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
openai = pytest.importorskip("openai")
image_module = pytest.importorskip("PIL.Image")

from real_server import Server, served  # noqa: E402
from small_diffusion import SIDE, likeness, train  # noqa: E402

from headway.errors import ConfigError  # noqa: E402
from headway.models.catalogue import build  # noqa: E402
from headway.models.ready.draw import DiffusionModel, Drawing  # noqa: E402

pytestmark = [pytest.mark.real_time, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diffusion") / "shapes"
    train(folder)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stable Diffusion with random weights: it draws nothing, but from a text and at any size."""
    folder = tmp_path_factory.mktemp("diffusion") / "tiny"
    torch.manual_seed(0)
    names = ["<|startoftext|>", "<|endoftext|>", "a</w>"]
    words = {name: index for index, name in enumerate(names)}
    (folder / "words").mkdir(parents=True)
    (folder / "words" / "vocab.json").write_text(json.dumps(words))
    (folder / "words" / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(
        str(folder / "words" / "vocab.json"),
        str(folder / "words" / "merges.txt"),
        model_max_length=8,
    )
    shutil.rmtree(folder)
    text = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=3,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=8,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
    )
    pipeline = diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=text,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(shapes: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "headway.toml").write_text(
        "[server]\nport = 0\ngrpc_port = -1\n"
        f'[[models]]\nname = "shapes"\ntarget = "{shapes}"\nwarm_up = false\n'
        f'[[models]]\nname = "tiny"\ntarget = "{tiny}"\nwarm_up = false\n'
        "options = {steps = 2, max_pixels = 4096}\n"
    )
    with served(folder, "headway.toml") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


def pictures(answer: Any) -> list[Any]:
    return [
        numpy.asarray(image_module.open(io.BytesIO(base64.b64decode(each.b64_json))))
        for each in answer.data
    ]


def draw(client: Any, prompt: str = "a shape", *, model: str = "shapes", **options: Any) -> Any:
    own = {name: options.pop(name) for name in ("seed", "steps", "guidance") if name in options}
    return client.images.generate(model=model, prompt=prompt, extra_body=own, **options)


def test_it_draws_what_it_was_trained_on(client: Any, shapes: Path) -> None:
    answer = draw(client, n=10, seed=0)
    found = pictures(answer)
    image_module.fromarray(numpy.hstack(found)).save(shapes.parent / "grid.png")
    assert answer.output_format == "png"
    assert answer.created > 1_700_000_000
    assert [each.shape for each in found] == [(SIDE, SIDE, 3)] * 10
    assert statistics.median(map(likeness, found)) > 0.8


def test_a_seed_is_a_picture_alone_and_in_company(client: Any) -> None:
    together = pictures(draw(client, n=6, seed=100))
    for number in (0, 3, 5):
        [alone] = pictures(draw(client, seed=100 + number))
        assert numpy.abs(together[number].astype(int) - alone).max() <= 2
    assert numpy.abs(together[0].astype(int) - together[1]).max() > 50


def test_without_a_seed_each_picture_is_another(client: Any) -> None:
    first, second = pictures(draw(client, n=2))
    assert not numpy.array_equal(first, second)


def test_several_prompts_share_every_step(shapes: Path) -> None:
    model = DiffusionModel(shapes, steps=5)
    model.setup()
    model.load()
    rows: list[int] = []
    net = model._pipeline.unet
    net.register_forward_pre_hook(lambda module, given: rows.append(len(given[0])))
    assert len(model.predict([Drawing("a", seed, 0) for seed in range(4)], steps=3)) == 4
    assert rows == [4, 4, 4]


def test_a_text_and_a_size_are_handed_on(client: Any) -> None:
    [default] = pictures(draw(client, "a", model="tiny", seed=1))
    assert default.shape == (16, 16, 3)
    [wide] = pictures(draw(client, "a a", model="tiny", seed=1, size="64x32", guidance=3.5))
    assert wide.shape == (32, 64, 3)
    [again] = pictures(draw(client, "a", model="tiny", seed=1, size="auto"))
    assert numpy.abs(again.astype(int) - default).max() <= 2


@pytest.mark.parametrize(
    ("model", "options", "status", "part"),
    [
        ("shapes", {"n": 0}, 400, "$.n"),
        ("shapes", {"n": 11}, 400, "$.n"),
        ("shapes", {"prompt": ""}, 400, "$.prompt"),
        ("shapes", {"prompt": "a" * 5000}, 413, "at most 4000"),
        ("shapes", {"size": "large"}, 400, "WIDTHxHEIGHT is expected, such as 16x16"),
        ("shapes", {"size": "32x32"}, 400, "draws 16x16 only"),
        ("shapes", {"response_format": "url"}, 400, "$.response_format"),
        ("shapes", {"output_format": "webp"}, 400, "$.output_format"),
        ("shapes", {"seed": -1}, 400, "$.seed"),
        ("shapes", {"steps": 0}, 400, "$.steps"),
        ("shapes", {"steps": 501}, 400, "from 1 to 500"),
        ("tiny", {"size": "0x16"}, 400, "multiples of 8"),
        ("tiny", {"size": "20x16"}, 400, "multiples of 8"),
        ("tiny", {"size": "1024x1024"}, 413, "more than 4096 pixels"),
        ("tiny", {"size": "99999x99999"}, 413, "more than 4096 pixels"),
        ("tiny", {"guidance": 1000}, 400, "from 0 to 100"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_a_mistake_is_refused_in_openais_shape(
    client: Any, model: str, options: dict[str, Any], status: int, part: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        draw(client, model=model, **{"prompt": "a", **options})
    assert caught.value.status_code == status
    assert part in caught.value.message
    assert caught.value.body.keys() == {"message", "type", "param", "code"}


def test_over_v2_the_picture_is_bytes(server: Server) -> None:
    httpclient = pytest.importorskip("tritonclient.http")
    with httpclient.InferenceServerClient(server.address) as client:
        prompt = httpclient.InferInput("prompt", [2, 1], "BYTES")
        prompt.set_data_from_numpy(numpy.array([[b"a"], [b"b"]], dtype=object))
        found = client.infer("shapes", [prompt], parameters={"seed": 7, "steps": 5})
        first, second = found.as_numpy("image").ravel()
        assert first[:8] == b"\x89PNG\r\n\x1a\n"
        assert first == second  # it knows no texts: the seed is the picture


def test_folders_that_could_run_code_are_refused(shapes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(shapes, folder)
    index = json.loads((folder / "model_index.json").read_text())
    for library in ("builtins", "my_code", "subprocess"):
        changed = {**index, "unet": [library, "UNet2DModel"]}
        (folder / "model_index.json").write_text(json.dumps(changed))
        with pytest.raises(ConfigError, match="only parts of diffusers and transformers"):
            build(str(folder), {})
    (folder / "model_index.json").write_text(json.dumps(index))
    for file in folder.rglob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    with pytest.raises(ConfigError, match="pickled weights"):
        build(str(folder), {})


def test_a_folder_without_what_draws_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "DDIMPipeline"}')
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "x.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="neither a unet nor a transformer"):
        build(str(tmp_path), {})
    (tmp_path / "model_index.json").write_text("[]")
    with pytest.raises(ConfigError, match="an object is expected"):
        build(str(tmp_path), {})


def test_the_example_draws(shapes: Path, tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "diffusion" / "draw.py"
    done = subprocess.run(
        [sys.executable, str(example), str(shapes)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "refused: size: WIDTHxHEIGHT" in done.stdout
    assert len(list(tmp_path.glob("drawn-*.png"))) == 3
