"""A batchable method over scikit-learn."""

import bentoml
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier


@bentoml.service
class Iris:
    def __init__(self) -> None:
        data = load_iris()
        self.model = DecisionTreeClassifier(random_state=0).fit(data.data, data.target)

    @bentoml.api(batchable=True)
    def classify(self, inputs: list[list[float]]) -> list[int]:
        return [int(each) for each in self.model.predict(inputs)]
