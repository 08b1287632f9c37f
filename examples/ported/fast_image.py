"""An uploaded image in, an image out."""

import io
from typing import Annotated

import headway
from fastapi import FastAPI, File, Response
from PIL import Image

app = FastAPI()


@headway.single
def thumbnail(file: Annotated[bytes, File()]):
    image = Image.open(io.BytesIO(file))
    image.thumbnail((32, 32))
    png = io.BytesIO()
    image.save(png, "PNG")
    return png.getvalue()
