"""A small diffusion model, trained here in seconds on a CPU: it draws discs, crosses and frames.

python tests/integration/small_diffusion.py FOLDER     # also writes FOLDER/grid.png, to look at
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy

SIDE = 16
BATCH = 32


def shapes(count: int, seed: int) -> Any:
    """Pictures [count, 3, SIDE, SIDE] from -1 to 1: a coloured shape on black."""
    chance = numpy.random.default_rng(seed)
    rows, columns = numpy.mgrid[:SIDE, :SIDE]
    made = numpy.full((count, 3, SIDE, SIDE), -1.0, numpy.float32)
    for picture in made:
        x, y = chance.uniform(6, 10, 2)
        size = chance.uniform(3.5, 5.5)
        across, down = abs(columns - x), abs(rows - y)
        kind = chance.integers(3)
        if kind == 0:
            is_shape = across**2 + down**2 < size**2
        elif kind == 1:
            is_shape = (numpy.minimum(across, down) < 1.5) & (numpy.maximum(across, down) < size)
        else:
            outer = numpy.maximum(across, down)
            is_shape = (outer < size) & (outer > size - 2)
        picture[kind][is_shape] = 1.0  # discs are red, crosses green, frames blue
    return made


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
        noise, times = torch.randn_like(clean), torch.randint(0, 1000, (BATCH,))
        guess = net(noise_schedule.add_noise(clean, noise, times), times).sample
        loss = torch.nn.functional.mse_loss(guess, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    diffusers.DDIMPipeline(net.eval(), noise_schedule).save_pretrained(folder)


def looks_like_a_shape(picture: Any) -> bool:
    """[SIDE, SIDE, 3] from 0 to 255: one bright colour on a dark ground, and little in between."""
    bright = picture.max(axis=2) > 170
    dark = picture.max(axis=2) < 85
    colours = picture[bright].mean(axis=0) if bright.any() else numpy.zeros(3)
    first, second = sorted(colours)[::-1][:2]
    return bool(0.05 < bright.mean() < 0.6 and (bright | dark).mean() > 0.85 and first > 2 * second)


def main() -> None:
    import torch
    from PIL import Image

    from headway.models.draw import ImageModel, Wish

    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    train(folder)
    model = ImageModel(folder)
    model.setup()
    model.load()
    pictures = model.predict([Wish("a shape", seed, 0) for seed in range(64)])
    rows = [numpy.hstack(pictures[row : row + 8]) for row in range(0, 64, 8)]
    grid = Image.fromarray(numpy.vstack(rows)).resize((768, 768), Image.Resampling.NEAREST)
    grid.save(folder / "grid.png")
    share = sum(map(looks_like_a_shape, pictures)) / len(pictures)
    sys.stdout.write(json.dumps({"look_like_shapes": share}) + "\n")


if __name__ == "__main__":
    main()
