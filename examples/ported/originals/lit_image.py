"""An image as base64 in a dict."""

import base64
import io

import litserve as ls
import numpy as np
from PIL import Image


class BrightnessAPI(ls.LitAPI):
    def setup(self, device):
        self.scale = 255.0

    def decode_request(self, request):
        return Image.open(io.BytesIO(base64.b64decode(request["image_bytes"]))).convert("L")

    def predict(self, image):
        return np.asarray(image).mean() / self.scale

    def encode_response(self, output):
        return {"brightness": round(float(output), 3)}


if __name__ == "__main__":
    ls.LitServer(BrightnessAPI()).run(port=8000)
