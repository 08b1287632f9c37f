"""A scikit-learn regression behind a pydantic model."""

import headway
from pydantic import BaseModel
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

data = load_diabetes()
model = Ridge().fit(data.data, data.target)


class Patient(BaseModel):
    features: list[float]


@headway.single
def predict(patient: Patient) -> dict[str, float]:
    return {"progression": float(model.predict([patient.features])[0])}
