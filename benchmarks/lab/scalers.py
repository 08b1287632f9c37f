"""What the shipped files make Kubernetes do: the queries and targets of the HPA, KEDA and KServe
files, read out of `deploy/` (the chart as Helm renders it), and HorizontalPodAutoscaler's formula.
"""

import math
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACE, RELEASE, SERVICE = "default", "mine", "embedder"  # the sample of KServe has this name
# As Prometheus' discovery gives them to the series of a release's pods.
LABELS = {
    "namespace": NAMESPACE,
    "app_kubernetes_io_instance": RELEASE,
    "serving_kserve_io_inferenceservice": SERVICE,
}
_TOLERANCE = 0.1
_USUAL_DOWN_S = 300.0  # where a file names no stabilisation


class ScaledMetric(NamedTuple):
    query: str
    target: float  # for each replica


class Scaler(NamedTuple):
    """One of the files."""

    metrics: Sequence[ScaledMetric]
    least: int
    most: int
    down_s: float = _USUAL_DOWN_S


class HorizontalPodAutoscaler:
    """`replicas × metric ÷ target`, rounded up, the largest of all metrics; left alone within the
    tolerance; fewer only if no look within the window wanted more."""

    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler
        self._wanted: deque[tuple[float, int]] = deque()

    def replicas(self, now: float, current: int, values: Sequence[float | None]) -> int:
        """`values`: what the queries say; None is no answer."""
        found = [
            _proposed(current, value, metric.target)
            for value, metric in zip(values, self._scaler.metrics, strict=True)
            if value is not None
        ]
        wanted = max(found, default=current)
        if len(found) < len(values):  # what one of them does not say may be that more are needed
            wanted = max(wanted, current)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - self._scaler.down_s:
            self._wanted.popleft()
        if wanted < current:
            wanted = min(current, max(each for _, each in self._wanted))
        return min(max(wanted, self._scaler.least), self._scaler.most)


def _proposed(current: int, value: float, target: float) -> int:
    ratio = value / (target * current)
    return current if abs(ratio - 1.0) <= _TOLERANCE else math.ceil(value / target - 1e-9)


def rendered(*values: str) -> dict[str, Any]:
    """The chart's manifests by kind."""
    sets = [word for each in values for word in ("--set", each)]
    chart = str(DEPLOY / "helm" / "headway")
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            ["helm", "template", RELEASE, chart, "--namespace", NAMESPACE, *sets],
            capture_output=True,
            check=True,
            env={"PATH": os.environ["PATH"], "HOME": home},
        )
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout) if each}


def hpa(manifest: Any) -> Scaler:
    """With prometheus-adapter's rules, as the adapter asks."""
    text = (DEPLOY / "prometheus" / "adapter-values.yaml").read_text()
    rules = {each["name"]["as"]: each for each in yaml.safe_load(text)["rules"]["external"]}
    spec, metrics = manifest["spec"], []
    for each in spec["metrics"]:
        metric, target = each["external"]["metric"], each["external"]["target"]
        assert target["type"] == "AverageValue", target
        labels = {"namespace": NAMESPACE, **metric.get("selector", {}).get("matchLabels", {})}
        matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
        query = rules[metric["name"]]["metricsQuery"].replace("<<.LabelMatchers>>", matchers)
        metrics.append(ScaledMetric(query, _quantity(target["averageValue"])))
    return Scaler(metrics, spec["minReplicas"], spec["maxReplicas"], _down_s(spec["behavior"]))


def keda(manifest: Any) -> Scaler:
    spec = manifest["spec"]
    metrics = [
        ScaledMetric(each["metadata"]["query"], float(each["metadata"]["threshold"]))
        for each in spec["triggers"]
    ]
    behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    return Scaler(metrics, spec["minReplicaCount"], spec["maxReplicaCount"], _down_s(behaviour))


def kserve() -> Scaler:
    """The sample that KEDA scales."""
    text = (DEPLOY / "kserve" / "inferenceservices.yaml").read_text()
    predictor = next(iter(yaml.safe_load_all(text)))["spec"]["predictor"]
    metrics = [
        ScaledMetric(
            each["external"]["metric"]["query"], _quantity(each["external"]["target"]["value"])
        )
        for each in predictor["autoScaling"]["metrics"]
    ]
    return Scaler(metrics, predictor["minReplicas"], predictor["maxReplicas"])


def _down_s(behaviour: Mapping[str, Any]) -> float:
    assert behaviour["scaleUp"]["stabilizationWindowSeconds"] == 0, "not what is played here"
    return float(behaviour["scaleDown"]["stabilizationWindowSeconds"])


def _quantity(text: str) -> float:
    """Kubernetes': 0.7 and 700m."""
    return float(text[:-1]) / 1000.0 if text.endswith("m") else float(text)


class Readings:
    """What scalers ask Prometheus; `ask` gives the values of a query's elements."""

    def __init__(self, ask: Callable[[str], list[float]]) -> None:
        self._ask = ask
        self.most: dict[str, int] = {}  # elements, by query
        self.asked: dict[str, int] = {}
        self.empty: dict[str, int] = {}

    def values(self, scaler: Scaler) -> list[float | None]:
        return [self._value(each.query) for each in scaler.metrics]

    def _value(self, query: str) -> float | None:
        found = self._ask(query)
        self.asked[query] = self.asked.get(query, 0) + 1
        self.empty[query] = self.empty.get(query, 0) + (not found)
        self.most[query] = max(self.most.get(query, 0), len(found))
        return found[0] if found else None
