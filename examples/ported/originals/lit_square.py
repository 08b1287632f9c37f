"""A dict in, a dict out."""

import litserve as ls


class SquareAPI(ls.LitAPI):
    def setup(self, device):
        self.model = lambda x: x**2

    def decode_request(self, request):
        return request["input"]

    def predict(self, x):
        return self.model(x)

    def encode_response(self, output):
        return {"output": output}


if __name__ == "__main__":
    ls.LitServer(SquareAPI()).run(port=8000)
