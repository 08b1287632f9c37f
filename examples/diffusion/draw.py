"""Image generation in your own process: prompts that come together share every step.

python draw.py FOLDER     # saved by diffusers; needs `pip install 'headway[diffusion]'`
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import headway
from headway.models.ready.draw import DiffusionModel

PROMPTS = ["a red disc", "a green triangle", "a blue square"]


async def main(folder: Path) -> list[Any]:
    async with headway.Batcher[Any, Any](DiffusionModel(folder), max_batch_size=8) as batcher:
        drawn = await asyncio.gather(
            *(
                batcher.submit(prompt, parameters={"seed": seed, "steps": 20})
                for seed, prompt in enumerate(PROMPTS)
            )
        )
        try:
            await batcher.submit("anything", parameters={"size": "huge"})
        except headway.InvalidInput as error:
            print("refused:", error)
        return drawn


if __name__ == "__main__":
    for number, image in enumerate(asyncio.run(main(Path(sys.argv[1])))):
        Path(f"drawn-{number}.png").write_bytes(image)
        print(f"drawn-{number}.png: {len(image)} bytes")
