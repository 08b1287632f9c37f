"""A small diffusion model, trained here in seconds on a CPU: it draws red discs, green triangles
and blue squares. They are filled: so small a net sees too little at once to close an outline.

python tests/integration/torch_models/small_diffusion.py FOLDER  # and FOLDER/grid.png
"""

import functools
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy

SIDE = 16
BATCH = 16


def shapes(count: int, seed: int) -> Any:
    """Pictures [count, 3, SIDE, SIDE] from -1 to 1: a coloured shape on black."""
    chance = numpy.random.default_rng(seed)
    made = numpy.full((count, 3, SIDE, SIDE), -1.0, numpy.float32)
    for picture in made:
        kind = chance.integers(3)  # and its colour: red, green or blue
        picture[kind][shape(kind, *chance.uniform(6, 9, 2), chance.uniform(4, 6))] = 1.0
    return made


def shape(kind: int, x: float, y: float, size: float) -> Any:
    """Where it is: a disc, a triangle or a square around (x, y)."""
    rows, columns = numpy.mgrid[:SIDE, :SIDE]
    across, down = abs(columns - x), rows - y
    if kind == 0:
        return across**2 + down**2 < size**2
    if kind == 1:
        return (across < (down + size) / 2) & (down < size)
    return numpy.maximum(across, abs(down)) < size - 0.5


def train(folder: Path, *, steps: int = 300, seed: int = 0) -> None:
    """A pipeline of diffusers, saved as safetensors."""
    import diffusers
    import torch

    torch.manual_seed(seed)
    net = diffusers.UNet2DModel(
        sample_size=SIDE,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        add_attention=False,
        norm_num_groups=4,
    )
    noise_schedule = diffusers.DDIMScheduler(
        num_train_timesteps=1000,
        beta_schedule="squaredcos_cap_v2",
        clip_sample=True,
        prediction_type="sample",  # flat colours are learnt faster than the noise on them
    )
    data = torch.from_numpy(shapes(2048, seed))
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(steps):
        clean = data[torch.randint(len(data), (BATCH,))]
        noise = torch.randn_like(clean)
        # Spread over the whole way from noise to picture: fewer steps learn as much.
        times = ((torch.arange(BATCH) + torch.rand(BATCH)) * 1000 / BATCH).long()
        guess = net(noise_schedule.add_noise(clean, noise, times), times).sample
        loss = torch.nn.functional.mse_loss(guess, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    diffusers.DDIMPipeline(net.eval(), noise_schedule).save_pretrained(folder)


def likeness(picture: Any) -> float:
    """Of [SIDE, SIDE, 3] from 0 to 255 to the shape of its colour that is nearest: what both
    cover, as a share of what either does."""
    kind = int(picture.sum(axis=(0, 1)).argmax())
    covered = picture.max(axis=2) > 127
    return max(
        float((ideal & covered).sum() / (ideal | covered).sum()) for ideal in _ideal_shapes(kind)
    )


@functools.cache
def _ideal_shapes(kind: int) -> list[Any]:
    places, sizes = numpy.arange(6, 9.1, 0.5), numpy.arange(4, 6.1, 0.25)
    return [shape(kind, *each) for each in itertools.product(places, places, sizes)]


def main() -> None:
    import torch
    from PIL import Image

    from headway.models.ready.draw import DiffusionModel, Drawing

    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    train(folder)
    model = DiffusionModel(folder)
    model.setup()
    model.load()
    pictures = model.predict([Drawing("a shape", seed, 0) for seed in range(64)])
    rows = [numpy.hstack(pictures[row : row + 8]) for row in range(0, 64, 8)]
    grid = Image.fromarray(numpy.vstack(rows)).resize((768, 768), Image.Resampling.NEAREST)
    grid.save(folder / "grid.png")
    found = [likeness(picture) for picture in pictures]
    means = {"mean_likeness": statistics.fmean(found), "least_likeness": min(found)}
    sys.stdout.write(json.dumps(means) + "\n")


if __name__ == "__main__":
    main()
