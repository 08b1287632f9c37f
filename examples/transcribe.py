"""Speech recognition in your own process: clips of different lengths share batches.

Needs `pip install 'headway[moonshine]'`. It transcribes the test clip that comes with the weights.
"""

import asyncio
from typing import Any

import headway
from headway.models.ready.speech.moonshine import MOONSHINE_WEIGHTS, Moonshine

RATE = 16_000


async def main() -> None:
    clip = (MOONSHINE_WEIGHTS.find() / "test-data" / "beckett.wav").read_bytes()
    async with headway.Batcher[Any, Any](Moonshine(), max_batch_size=16) as batcher:
        print("a file:", await batcher.submit(clip))
        voice = Moonshine().prepare(clip).samples
        parts = [voice[: seconds * RATE] for seconds in (3, 5, 10)]
        for text in await batcher.many(parts):  # samples at 16 kHz will do, too
            print("samples:", text)
        try:
            await batcher.submit(b"no sound at all")
        except headway.InvalidInput as error:
            print("refused:", error)


if __name__ == "__main__":
    asyncio.run(main())
