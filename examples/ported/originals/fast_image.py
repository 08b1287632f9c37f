"""An uploaded image in, an image out."""

import io
from typing import Annotated

from fastapi import FastAPI, File, Response
from PIL import Image

app = FastAPI()


@app.post("/thumbnail", response_class=Response)
def thumbnail(file: Annotated[bytes, File()]):
    image = Image.open(io.BytesIO(file))
    image.thumbnail((32, 32))
    png = io.BytesIO()
    image.save(png, "PNG")
    return Response(png.getvalue(), media_type="image/png")
