"""OCR: the text in an image, line by line. `python read_image.py PAGE.png …`

Needs `pip install 'headway[ocr]'`. Without an argument it draws a page of its own.
"""

import asyncio
import io
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import headway
from headway.models.ready.ocr import RapidOCR


def drawn() -> bytes:
    page = Image.new("RGB", (520, 140), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=36)
    draw.text((20, 10), "Next departure 12:45", fill="black", font=font)
    draw.text((20, 75), "Platform 7", fill="black", font=font)
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


async def main(images: list[bytes]) -> None:
    async with headway.Batcher(RapidOCR()) as batcher:
        for page in await batcher.many(images):
            for line in page["lines"]:
                print(f"{line['score']:.2f}  {line['text']}")


asyncio.run(main([Path(each).read_bytes() for each in sys.argv[1:]] or [drawn()]))
