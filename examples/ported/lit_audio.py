"""Audio bytes as base64 in a dict, read by soundfile."""

import base64
import io

import headway.compat.litserve as ls
import numpy as np
import soundfile


class LoudnessAPI(ls.LitAPI):
    def setup(self, device):
        self.silence = 1e-4

    def decode_request(self, request):
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(request["audio"])))
        return samples

    def predict(self, samples):
        return float(np.sqrt(np.mean(samples**2)))

    def encode_response(self, output):
        return {"rms": round(output, 4), "is_silent": output < self.silence}


if __name__ == "__main__":
    ls.LitServer(LoudnessAPI()).run(port=8000)
