"""Image classification: what does a photograph show? `python classify_image.py PHOTO.jpg …`

Needs `pip install ./efficientnet_package`, in this folder. Without an argument it uses a
photograph that comes with matplotlib: Grace Hopper, in uniform.
"""

import asyncio
import sys
from pathlib import Path

import matplotlib
from headway_efficientnet import EfficientNet

import headway

SAMPLE = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"


async def main() -> None:
    paths = [Path(each) for each in sys.argv[1:]] or [SAMPLE]
    async with headway.Batcher(EfficientNet(top_k=3)) as batcher:
        for path in paths:
            found = await batcher.submit(path.read_bytes())
            print(path.name)
            for label, score in zip(found["labels"], found["scores"], strict=True):
                print(f"  {score:.2f}  {label}")
        try:
            await batcher.submit(b"not an image")
        except headway.InvalidInput as error:
            print(f"refused: {str(error).partition(':')[0]}")


asyncio.run(main())
