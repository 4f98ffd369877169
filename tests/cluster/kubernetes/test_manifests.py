"""deploy/kubernetes/: valid objects without unknown fields, whose names, labels, ports and settings agree."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError

from chairlift.cli.settings.config_file import read_config
from chairlift.cluster.kubernetes.workload_url import parse_workload_url
from chairlift.router.discovery.kubernetes import KubernetesSource
from support_certificates import CertificateAuthority
from support_kubernetes_cluster import MANIFESTS
from support_kubernetes_manifests import Deployed, check_object, documents, of_kind, read
from support_source_tree import ROOT

FILES = sorted(MANIFESTS.rglob("*.yaml"))
SCALED_OBJECT = {
    "scaleTargetRef": {"apiVersion", "kind", "name"}, "pollingInterval": int, "cooldownPeriod": int,
    "minReplicaCount": int, "maxReplicaCount": int, "triggers": list,
}  # fmt: skip
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chairlift-replica"}
BASE = documents(*sorted(MANIFESTS.glob("*.yaml")))
DEPLOYED = Deployed(BASE)
DEPLOYMENTS = DEPLOYED.deployments
template, container, options = DEPLOYED.pod, DEPLOYED.container, DEPLOYED.options


@pytest.mark.share(2)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_object_is_valid_and_has_no_unknown_field(path: Path) -> None:
    assert documents(path)
    for each in documents(path):
        check_object(each)


@pytest.mark.parametrize("change", [{"replica": 2}, {"replicas": "two"}, {"strategy": {"type": 7}}, {"template": 1}])
def test_an_unknown_field_and_a_wrong_value_would_be_found(change: dict[str, Any]) -> None:
    router = DEPLOYMENTS["chairlift-router"]
    with pytest.raises(ValidationError):
        check_object({**router, "spec": {**router["spec"], **change}})


def test_a_double_key_would_be_found() -> None:
    with pytest.raises(AssertionError, match="a key occurs twice"):
        read("a: {b: 1, b: 2}")


def test_names_labels_ports_and_references_agree() -> None:
    assert list(DEPLOYMENTS) == ["chairlift-autoscaler", "chairlift-replica", "chairlift-router"]
    assert len({container(name)["image"] for name in DEPLOYMENTS}) == 1
    DEPLOYED.check_references()
    sources = of_kind("NetworkPolicy", BASE)["chairlift-replica"]["spec"]["ingress"][0]["from"]
    pods = [each["podSelector"]["matchLabels"]["app"] for each in sources if "podSelector" in each]
    assert pods == ["chairlift-router", "chairlift-autoscaler"]
    assert set(of_kind("PodDisruptionBudget", BASE)) == {"chairlift-replica", "chairlift-router"}
    assert set(of_kind("NetworkPolicy", BASE)) == set(DEPLOYMENTS)


def test_pods_have_no_rights_and_limits() -> None:
    DEPLOYED.check_rights()
    assert template("chairlift-replica")["spec"]["automountServiceAccountToken"] is False


def test_the_settings_files_are_valid(tmp_path: Path) -> None:
    for name, each in of_kind("ConfigMap", BASE).items():
        (text,) = each["data"].values()
        (tmp_path / "settings.yaml").write_text(text, "utf-8")
        file = read_config(str(tmp_path / "settings.yaml"))
        assert not file.problems and file.values
        assert not {f"--{key.replace('_', '-')}" for key in read(text)[0]} & options(name).keys()


def test_reference_errors_would_be_found() -> None:
    for kind, path in (("Service", "selector"), ("NetworkPolicy", "podSelector")):
        objects = [each for each in BASE if each["kind"] != kind]
        broken = {**of_kind(kind, BASE)["chairlift-router"]}
        broken["spec"] = {
            **broken["spec"],
            path: {"app": "no-such"} if kind == "Service" else {"matchLabels": {"a": "b"}},
        }
        with pytest.raises(ValueError, match="not enough values"):
            Deployed([*objects, broken]).check_references()


def test_the_pod_monitor_finds_the_pods() -> None:
    (monitor,) = documents(MANIFESTS / "alternatives" / "podmonitor.yaml")
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    assert (
        sorted(expression["values"]) == list(DEPLOYMENTS) and monitor["spec"]["jobLabel"] == expression["key"] == "app"
    )
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert all(endpoint["port"] == container(name)["ports"][0]["name"] for name in DEPLOYMENTS)


def test_commands_are_valid_and_their_urls_name_what_the_manifests_make(tmp_path: Path) -> None:
    DEPLOYED.check_commands()
    CertificateAuthority(tmp_path, "cluster").file.rename(tmp_path / "ca.crt")
    inside = {"environ": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "service_account": tmp_path}
    url = parse_workload_url(options("chairlift-autoscaler")["--cluster"], **inside)
    assert url.name in DEPLOYMENTS and url.namespace == "default"
    assert url.port in {port["name"] for port in container(url.name)["ports"]}
    source = KubernetesSource(options("chairlift-router")["--discovery"], **inside)
    assert source._service in of_kind("Service", BASE)


@pytest.mark.parametrize("name", ["chairlift-replica", "chairlift-router"])
def test_a_pod_has_the_time_to_drain(name: str) -> None:
    DEPLOYED.check_drain(name)


def test_every_process_is_probed_and_the_autoscalers_metrics_can_be_read_as_the_routers() -> None:
    for name in DEPLOYMENTS:
        assert container(name)["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert container(name)["readinessProbe"]["httpGet"]["path"] == "/readyz"
    autoscaler, router = (template(f"chairlift-{name}") for name in ("autoscaler", "router"))
    assert autoscaler["metadata"]["annotations"] == router["metadata"]["annotations"]
    (keys,) = [each for each in router["spec"]["volumes"] if each["name"] == "keys"]
    assert keys in autoscaler["spec"]["volumes"]
    assert {"--key-file", "--public-metrics"} <= options("chairlift-autoscaler").keys()


def test_replicas_take_the_keys_that_the_router_and_the_autoscaler_send() -> None:
    folder = "/etc/chairlift/replica-keys"
    files = {
        name: {item["path"] for each in template(name)["spec"]["volumes"] if each["name"] == "replica-keys"
               for item in each["secret"]["items"]}
        for name in DEPLOYMENTS
    }  # fmt: skip
    assert files == {
        "chairlift-autoscaler": {"api-key"}, "chairlift-replica": {"keys.txt"},
        "chairlift-router": {"api-key", "admin-key"},
    }  # fmt: skip
    router = options("chairlift-router")
    assert options("chairlift-replica")["--key-file"] == f"{folder}/keys.txt"
    assert "--insecure" not in options("chairlift-replica")
    assert router["--replica-key-file"] == options("chairlift-autoscaler")["--replica-key-file"] == f"{folder}/api-key"
    assert router["--replica-admin-key-file"] == f"{folder}/admin-key"


def test_only_one_owns_the_number_of_replicas() -> None:
    assert "replicas" not in DEPLOYMENTS["chairlift-replica"]["spec"]
    assert DEPLOYMENTS["chairlift-autoscaler"]["spec"]["strategy"] == {"type": "Recreate"}
    assert not {each["kind"] for each in BASE} & {"HorizontalPodAutoscaler", "ScaledObject"}


def test_the_alternatives_scale_the_same_deployment_by_metrics_that_exist() -> None:
    metrics = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    bounds = options("chairlift-autoscaler")
    (hpa,) = documents(MANIFESTS / "alternatives" / "hpa.yaml")
    assert hpa["spec"]["scaleTargetRef"] == TARGET
    assert [str(hpa["spec"][each]) for each in ("minReplicas", "maxReplicas")] == [
        bounds["--min-replicas"], bounds["--max-replicas"],
    ]  # fmt: skip
    assert f"`{hpa['spec']['metrics'][0]['pods']['metric']['name']}`" in metrics
    (keda,) = documents(MANIFESTS / "alternatives" / "keda.yaml")
    assert set(keda["spec"]) == set(SCALED_OBJECT) and keda["spec"]["scaleTargetRef"] == TARGET
    assert all(isinstance(keda["spec"][key], kind) for key, kind in SCALED_OBJECT.items() if isinstance(kind, type))
    assert (keda["spec"]["minReplicaCount"], keda["spec"]["maxReplicaCount"]) == (
        hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"],
    )  # fmt: skip
    (trigger,) = keda["spec"]["triggers"]
    assert trigger["type"] == "prometheus" and set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert f"`{trigger['metadata']['query'].removeprefix('sum(').partition('{')[0]}`" in metrics
