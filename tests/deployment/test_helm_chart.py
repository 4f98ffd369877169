"""deploy/helm/chairlift, rendered by Helm's own library: what deploy/kubernetes has, and each choice of its values."""

import json
from collections.abc import Mapping
from typing import Any

import helm_python as helm
import pytest
import yaml

from chairlift import __version__
from support_kubernetes_cluster import MANIFESTS
from support_kubernetes_manifests import Deployed, Object, check_object, documents, of_kind, read
from support_source_tree import ROOT

CHART = ROOT / "deploy" / "helm" / "chairlift"
INSTANCE, SETTINGS = "app.kubernetes.io/instance", "chairlift/settings"
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.test/chairlift", "tag": "9", "pullSecrets": ["pull"]},
    "keys": {"secret": "other-keys"},
    "replica": {
        "settings": {"model": "/models/m", "max_batch_tokens": 4096}, "args": ["--max-model-len=8k"],
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
        "drainTimeout": 300, "startTimeout": 61, "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "resources": {"requests": {"cpu": "4", "memory": "32Gi"}, "limits": {"memory": "32Gi", "nvidia.com/gpu": "1"}},
    },
    "models": {"storageClass": "nfs", "size": "1Ti"},
    "router": {
        "count": 3, "service": {"type": "LoadBalancer", "port": 443}, "args": ["--hold-timeout=30"],
        "nodeSelector": {"pool": "cpu"}, "settings": {"policy": "least_connections"},
    },
    "autoscaler": {"args": ["--target-wait=2"], "maxReplicas": 3},
    "podMonitor": {"enabled": True},
    "ingress": {"enabled": True, "host": "llm.test", "tlsSecret": "llm-tls"},
}  # fmt: skip


@pytest.fixture(scope="module")
def chart() -> Any:
    return helm.Chart.load(CHART)


def render(chart: Any, values: Mapping[str, Any] | None = None, name: str = "chairlift") -> list[Object]:
    chart.validate_schema(dict(values or {}))
    files = chart.render(dict(values or {}), name=name, namespace="default")
    return [each for file in sorted(files) if file.endswith(".yaml") for each in read(files[file])]


def without(value: Any, *keys: str) -> Any:
    """Return a copy of a value without these keys, wherever they are."""
    if isinstance(value, dict):
        return {key: without(each, *keys) for key, each in value.items() if key not in keys}
    return [without(each, *keys) for each in value] if isinstance(value, list) else value


def check(objects: list[Object]) -> Deployed:
    for each in objects:
        check_object(each)
    deployed = Deployed(objects)
    deployed.check_references()
    deployed.check_commands()
    deployed.check_rights()
    for name in deployed.deployments:
        if not name.endswith("-autoscaler"):
            deployed.check_drain(name)
    return deployed


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def test_the_defaults_with_keys_of_replicas_make_what_the_manifests_have(chart: Any) -> None:
    values = {"keys": {"replicaSecret": "chairlift-replica-keys"}}
    rendered = by_name(without(render(chart, values), INSTANCE, SETTINGS, "imagePullPolicy"))
    plain = by_name(documents(*sorted(MANIFESTS.glob("*.yaml"))))
    del rendered["PersistentVolumeClaim", "chairlift-models"]["metadata"]["annotations"]
    assert rendered.keys() == plain.keys()
    for key, each in plain.items():
        if key[0] == "ConfigMap":
            for each_side in (each, rendered[key]):
                each_side["data"] = {name: yaml.safe_load(text) for name, text in each_side["data"].items()}
        assert rendered[key] == each, key


@pytest.mark.full
def test_the_defaults_and_every_value_make_valid_objects_that_agree(chart: Any) -> None:
    check(render(chart, name="other"))
    deployed = check(render(chart, EVERYTHING, "llm"))
    replica, router = deployed.pod("llm-replica")["spec"], deployed.pod("llm-router")["spec"]
    assert replica["terminationGracePeriodSeconds"] == 330 and replica["nodeSelector"] == {"gpu": "h100"}
    assert deployed.container("llm-replica")["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert deployed.container("llm-replica")["startupProbe"]["failureThreshold"] == 13  # of 5 s each
    assert deployed.container("llm-replica")["image"] == "registry.test/chairlift:9"
    assert router["imagePullSecrets"] == [{"name": "pull"}]
    assert deployed.options("llm-router")["--hold-timeout"] == "30"
    (text,) = of_kind("ConfigMap", deployed.objects)["llm-replica"]["data"].values()
    assert yaml.safe_load(text) == {**chart.values["replica"]["settings"], **EVERYTHING["replica"]["settings"]}
    kinds = [each["kind"] for each in deployed.objects]
    assert {"Ingress", "PodMonitor", "PersistentVolumeClaim"} <= set(kinds)
    for each in deployed.objects:
        selector = each.get("spec", {}).get("selector", {})
        if each["kind"] in ("Deployment", "Service", "PodMonitor"):
            assert selector.get("matchLabels", selector)[INSTANCE] == "llm"


@pytest.mark.full
def test_replicas_have_keys_that_only_the_router_knows_and_an_image_of_their_own(chart: Any) -> None:
    values = {"keys": {"replicaSecret": "rk"}, "replica": {"image": {"tag": "9-cuda"}}, "image": {"tag": "9"}}
    deployed = check(render(chart, values))
    replica, router, scaler = (deployed.options(f"chairlift-{name}") for name in ("replica", "router", "autoscaler"))
    assert replica["--key-file"] == "/etc/chairlift/replica-keys/keys.txt" and "--insecure" not in replica
    assert router["--replica-admin-key-file"] == "/etc/chairlift/replica-keys/admin-key"
    assert router["--replica-key-file"] == scaler["--replica-key-file"] == "/etc/chairlift/replica-keys/api-key"
    files = {
        name: {item["key"] for each in deployed.pod(f"chairlift-{name}")["spec"]["volumes"]
               if each["name"] == "replica-keys" for item in each["secret"]["items"]}
        for name in ("replica", "router", "autoscaler")
    }  # fmt: skip
    assert files == {"replica": {"keys.txt"}, "router": {"api-key", "admin-key"}, "autoscaler": {"api-key"}}
    assert deployed.container("chairlift-replica")["image"] == "chairlift:9-cuda"
    with_tls = check(render(chart, {"replica": {"scheme": "HTTPS"}}))
    assert with_tls.options("chairlift-router")["--discovery"].endswith("?port=http&scheme=https")
    probed = with_tls.container("chairlift-replica")
    probes = [probed[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [each["scheme"] for each in probes] == ["HTTPS"] * 3
    assert deployed.container("chairlift-router")["image"] == "chairlift:9"


@pytest.mark.full
def test_new_settings_make_new_pods(chart: Any) -> None:
    def digest(model: str) -> str:
        deployed = Deployed(render(chart, {"replica": {"settings": {"model": model}}}))
        return str(deployed.pod("chairlift-replica")["metadata"]["annotations"][SETTINGS])

    assert digest("a") == digest("a") != digest("b")


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("values", "kind"),
    [({"hpa": {"enabled": True}}, "HorizontalPodAutoscaler"), ({"keda": {"enabled": True}}, "ScaledObject"), ({}, "")],
)
def test_one_scaler_or_a_fixed_number(chart: Any, values: dict[str, Any], kind: str) -> None:
    objects = render(chart, {**values, "autoscaler": {"enabled": False}})
    deployed = check(objects)
    scalers = [each for each in objects if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
    assert [each["kind"] for each in scalers] == ([kind] if kind else [])
    assert ("replicas" in deployed.deployments["chairlift-replica"]["spec"]) is (not kind)
    assert "chairlift-autoscaler" not in deployed.deployments
    if kind:
        names = {"HorizontalPodAutoscaler": "hpa.yaml", "ScaledObject": "keda.yaml"}
        assert scalers == documents(MANIFESTS / "alternatives" / names[kind])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"hpa": {"enabled": True}}, "only one of autoscaler, hpa and keda"),
        ({"ingress": {"enabled": True}}, r"ingress\.host is needed"),
        ({"autoscaler": {"minReplicas": 9}}, r"autoscaler\.minReplicas is more than"),
        ({"autoscaler": {"enabled": False}, "hpa": {"enabled": True, "minReplicas": 9}}, r"hpa\.minReplicas is more"),
        ({"autoscaler": {"enabled": False}, "keda": {"enabled": True, "minReplicas": 9}}, r"keda\.minReplicas is more"),
        ({"autoscaler": {"minReplicas": 0}}, "0 needs --query=held_requests="),
    ],
)
def test_values_that_do_not_agree_are_refused(chart: Any, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(helm.HelmRenderError, match=reason):
        render(chart, values)


def test_no_replica_is_possible_with_a_query_that_wakes_one(chart: Any) -> None:
    args = ["--prometheus-url=http://prometheus:9090", "--query=held_requests=sum(chairlift_router_held_requests)"]
    assert check(render(chart, {"autoscaler": {"minReplicas": 0, "args": args}}))


@pytest.mark.full
def test_values_that_look_like_numbers_or_yaml_stay_text(chart: Any) -> None:
    values = {
        "keys": {"secret": "123"}, "networkPolicy": {"monitoringNamespace": "1e3"}, "podMonitor": {"enabled": True},
        "image": {"pullSecrets": ["0"]}, "replica": {"cacheSize": "5"},
        "models": {"storageClass": "-", "size": "0.5Ei"},
        "ingress": {"enabled": True, "host": "*.llm.test", "tlsSecret": "7", "className": "true"},
    }  # fmt: skip
    deployed = check(render(chart, values, "42"))
    (claim,) = of_kind("PersistentVolumeClaim", deployed.objects).values()
    assert claim["spec"]["storageClassName"] == ""
    (ingress,) = of_kind("Ingress", deployed.objects).values()
    assert ingress["spec"]["tls"] == [{"hosts": ["*.llm.test"], "secretName": "7"}]
    (monitor,) = of_kind("PodMonitor", deployed.objects).values()
    assert monitor["metadata"]["name"] == monitor["spec"]["selector"]["matchLabels"][INSTANCE] == "42"
    for each in (objects := render(chart, {"models": {"existingClaim": "9"}})):
        check_object(each)
    assert not of_kind("PersistentVolumeClaim", objects)


@pytest.mark.parametrize("has_policy", [True, False])
def test_the_notes_warn_of_replicas_that_every_pod_reaches(chart: Any, has_policy: bool) -> None:
    files = chart.render({"networkPolicy": {"enabled": has_policy}}, name="chairlift", namespace="default")
    assert ("WARNING: replicas need no key" in files["chairlift/templates/NOTES.txt"]) is not has_policy


def test_an_image_by_its_digest(chart: Any) -> None:
    digest = "sha256:" + "0f" * 32
    deployed = Deployed(render(chart, {"image": {"repository": "registry.test:5000/c", "tag": "9", "digest": digest}}))
    images = {deployed.container(name)["image"] for name in deployed.deployments}
    assert images == {f"registry.test:5000/c@{digest}"}


@pytest.mark.share(15)
@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 3}, {"replica": {"count": "3"}}, {"replica": {"settings": {"maxModelLen": 5}}},
        {"replica": {"settings": {"port": 9}}}, {"replica": {"args": [1]}}, {"router": {"count": 0}},
        {"router": {"service": {"type": "External"}}}, {"image": {"pullPolicy": "Sometimes"}}, {"keys": {"secret": ""}},
        {"models": {"size": "100 GB"}}, {"models": {"accessMode": "RWX"}}, {"keda": {"prometheusUrl": "prometheus"}},
        {"replica": {"resources": {"limits": {"memory": None}}}},
        {"image": {"repository": "r/c@sha256:" + "0" * 64}}, {"image": {"digest": "sha256:12"}},
        {"replica": {"cacheSize": "10K"}}, {"models": {"size": "0"}}, {"models": {"size": "1Kib"}},
        {"replica": {"resources": {"requests": {"cpu": "two"}}}},
        {"router": {"resources": {"limits": {"memory": True}}}},
        {"replica": {"args": ["--port=9"]}}, {"replica": {"args": ["--drain-timeout", "900"]}},
        {"router": {"args": ["--host=::"]}}, {"autoscaler": {"args": ["--max-replicas=9"]}},
        {"autoscaler": {"args": ["--port=9"]}}, {"replica": {"tolerations": [{"keys": "gpu"}]}},
        {"router": {"tolerations": [{"operator": "Is"}]}}, {"hpa": {"minReplicas": None}},
        {"hpa": {"maxReplicas": None}}, {"keda": {"minReplicas": 0}}, {"keda": {"waitingTokens": None}},
    ],
)  # fmt: skip
def test_the_schema_rejects(chart: Any, values: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmValuesError):
        render(chart, values)


@pytest.mark.share(2)
@pytest.mark.parametrize("quantity", ["1", "1.5", "500m", "10k", "2Ei", 2])
def test_the_schema_accepts_quantities(chart: Any, quantity: str | int) -> None:
    render(chart, {"replica": {"resources": {"requests": {"cpu": quantity}}}})


def test_helm_finds_nothing_wrong_and_the_versions_are_those_of_the_program(chart: Any) -> None:
    report = helm.lint(str(CHART), strict=True)
    assert report["errors"] == [] and all(each["severity"] <= 1 for each in report["messages"])
    assert (chart.version, chart.metadata["appVersion"]) == (__version__, __version__)


def test_the_schema_describes_every_value(chart: Any) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))

    def check_level(values: dict[str, Any], level: dict[str, Any], path: str) -> None:
        assert values.keys() <= level["properties"].keys(), path
        for name, each in values.items():
            if "properties" in level["properties"][name]:
                assert level["properties"][name]["additionalProperties"] is False
                check_level(each, level["properties"][name], f"{path}.{name}")

    check_level(yaml.safe_load((CHART / "values.yaml").read_text("utf-8")), schema, "")
