"""A generator: one answer after another."""

import litserve as ls


class WordsAPI(ls.LitAPI):
    def setup(self, device):
        self.separator = " "

    def decode_request(self, request):
        return request["prompt"]

    def predict(self, prompt):
        for word in prompt.split(self.separator):
            yield word.upper()

    def encode_response(self, output_stream):
        for word in output_stream:
            yield {"output": word}


if __name__ == "__main__":
    ls.LitServer(WordsAPI()).run(port=8000)
