"""Pillow images in and out."""

import bentoml
from PIL import ImageOps
from PIL.Image import Image


@bentoml.service
class Negative:
    @bentoml.api
    def invert(self, image: Image) -> Image:
        return ImageOps.invert(image.convert("RGB"))
