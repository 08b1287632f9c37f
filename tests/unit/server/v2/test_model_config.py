"""What Triton's clients read of a model's configuration."""

from typing import Any, ClassVar

import pytest

import headway
from headway.config import ModelConfig
from headway.hosting.hosted import Served
from headway.model import Tensor
from headway.server.families.v2.model_config import config_of


class Some(headway.TensorModel):
    outputs: ClassVar = [Tensor("y", "float32", (-1,))]

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.inputs = [Tensor("x", "float32", shape)]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"].sum(1)}


def served(shape: tuple[int, ...] = (-1, 2), device: Any = None, **settings: Any) -> Any:
    model = Some(shape)
    if device is not None:
        model.device = device  # type: ignore[attr-defined]
    config = ModelConfig(name="some", target="tests:None", warm_up=False, **settings)
    return Served(config, model=model)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((-1, 224, 224, 3), "FORMAT_NHWC"),
        ((-1, -1, -1, 1), "FORMAT_NHWC"),
        ((-1, 3, 224, 224), "FORMAT_NCHW"),
        ((-1, 3, 8, 3), "FORMAT_NONE"),
        ((-1, 5, 8, 7), "FORMAT_NONE"),
        ((-1, 3), "FORMAT_NONE"),
        ((-1,), "FORMAT_NONE"),
    ],
)
def test_an_images_axes_are_named(shape: tuple[int, ...], said: str) -> None:
    [port] = config_of(served(shape))["input"]
    assert port["format"] == said


@pytest.mark.parametrize(
    ("device", "settings", "groups"),
    [
        (None, {}, [("KIND_CPU", 1, None)]),
        ("cpu", {"workers": 3}, [("KIND_CPU", 3, None)]),
        ("cuda", {}, [("KIND_GPU", 1, [0])]),
        ("cuda:1", {"workers": 2}, [("KIND_GPU", 2, [1])]),
        ("tensorrt:0", {}, [("KIND_GPU", 1, [0])]),
        ("openvino", {}, [("KIND_CPU", 1, None)]),
        ("coreml", {}, [("KIND_MODEL", 1, None)]),
        ("", {}, [("KIND_MODEL", 1, None)]),
        (print, {}, [("KIND_MODEL", 1, None)]),
        (
            "cuda",
            {"workers": 3, "worker": "process", "pin": ("cuda:0", "cuda:1")},
            [("KIND_GPU", 2, [0]), ("KIND_GPU", 1, [1])],
        ),
    ],
)
def test_instance_groups_say_where_the_workers_run(
    device: Any, settings: dict[str, Any], groups: list[Any]
) -> None:
    found = config_of(served(device=device, **settings))["instance_group"]
    assert [(each["kind"], each["count"], each.get("gpus")) for each in found] == groups
    assert len({each["name"] for each in found}) == len(found)
