"""scikit-learn over batches, with `batch` and `unbatch`."""

import headway.compat.litserve as ls
import numpy as np
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression


class IrisAPI(ls.LitAPI):
    def setup(self, device):
        data = load_iris()
        self.names = data.target_names
        self.model = LogisticRegression(max_iter=1000).fit(data.data, data.target)

    def decode_request(self, request):
        return np.asarray(request["features"], dtype=float)

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, batch):
        return self.model.predict_proba(batch)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"species": str(self.names[output.argmax()]), "probability": float(output.max())}


if __name__ == "__main__":
    ls.LitServer(IrisAPI()).run(port=8000)
