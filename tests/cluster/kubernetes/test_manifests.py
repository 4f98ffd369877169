"""deploy/kubernetes/: valid objects without unknown fields, whose names, labels, ports and settings agree."""

from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml

from chairlift.cli.command_line import build_parser, check_command
from chairlift.cluster.kubernetes.workload_url import parse_workload_url
from chairlift.router.discovery.kubernetes import KubernetesSource
from support_certificates import CertificateAuthority
from support_kubernetes_cluster import MANIFESTS
from support_source_tree import ROOT

FILES = sorted(MANIFESTS.rglob("*.yaml"))
MODELS = {"v1": "V1", "apps/v1": "V1", "policy/v1": "V1", "autoscaling/v2": "V2",
          "networking.k8s.io/v1": "V1", "rbac.authorization.k8s.io/v1": "V1"}  # fmt: skip
SCALED_OBJECT = {
    "scaleTargetRef": {"apiVersion", "kind", "name"}, "pollingInterval": int, "cooldownPeriod": int,
    "minReplicaCount": int, "maxReplicaCount": int, "triggers": list,
}  # fmt: skip
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chairlift-replica"}


class StrictLoader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]  # type: ignore[no-untyped-call]
        assert len(keys) == len(set(keys)), f"a key occurs twice in {keys}"
        return super().construct_mapping(node, deep)


def documents(*paths: Path) -> list[dict[str, Any]]:
    return [each for path in paths for each in yaml.load_all(path.read_text("utf-8"), StrictLoader)]


def of_kind(kind: str, found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


BASE = documents(*sorted(MANIFESTS.glob("*.yaml")))
DEPLOYMENTS = of_kind("Deployment", BASE)


def template(name: str) -> dict[str, Any]:
    return dict(DEPLOYMENTS[name]["spec"]["template"])


def container(name: str) -> dict[str, Any]:
    (found,) = template(name)["spec"]["containers"]
    return dict(found)


def options(name: str) -> dict[str, str]:
    """Return the flags of a Deployment's command; `--a b` and `--a=b` alike."""
    words = [part for word in container(name)["args"][1:] for part in word.split("=", 1)]
    flags = [number for number, word in enumerate(words) if word.startswith("--")]
    return {words[at]: " ".join(words[at + 1 : end]) for at, end in zip(flags, [*flags[1:], None], strict=True)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_object_is_one_of_the_official_models_without_unknown_fields(path: Path) -> None:
    """What the client's model does not know is missing when it writes the object again."""
    client = kubernetes.client.ApiClient()
    assert documents(path)
    for each in documents(path):
        if each["kind"] == "ScaledObject":
            assert each["apiVersion"] == "keda.sh/v1alpha1" and set(each) == {"apiVersion", "kind", "metadata", "spec"}
            continue
        model = MODELS[each["apiVersion"]] + each["kind"]
        parsed = client._ApiClient__deserialize(each, model)
        assert client.sanitize_for_serialization(parsed) == each


def test_an_unknown_field_and_a_double_key_would_be_found(tmp_path: Path) -> None:
    client = kubernetes.client.ApiClient()
    body = {**DEPLOYMENTS["chairlift-router"], "spec": {**DEPLOYMENTS["chairlift-router"]["spec"], "replica": 2}}
    assert client.sanitize_for_serialization(client._ApiClient__deserialize(body, "V1Deployment")) != body
    (tmp_path / "a.yaml").write_text("a: {b: 1, b: 2}", "utf-8")
    with pytest.raises(AssertionError, match="a key occurs twice"):
        documents(tmp_path / "a.yaml")


def test_names_labels_and_ports_agree() -> None:
    assert len({(each["kind"], each["metadata"]["name"]) for each in BASE}) == len(BASE)
    assert list(DEPLOYMENTS) == ["chairlift-autoscaler", "chairlift-replica", "chairlift-router"]
    accounts, labels = of_kind("ServiceAccount", BASE), [template(name)["metadata"]["labels"] for name in DEPLOYMENTS]
    assert len({container(name)["image"] for name in DEPLOYMENTS}) == 1
    for name, each in DEPLOYMENTS.items():
        assert each["spec"]["selector"]["matchLabels"] == template(name)["metadata"]["labels"] == {"app": name}
        assert template(name)["spec"]["serviceAccountName"] in accounts
        ports = {port["name"] for port in container(name).get("ports", ())}
        probes = [value["httpGet"] for key, value in container(name).items() if key.endswith("Probe")]
        assert {probe["port"] for probe in probes} <= ports
        assert {probe["path"] for probe in probes} <= {"/livez", "/readyz"}
    for name, each in of_kind("Service", BASE).items():
        assert each["spec"]["selector"] == {"app": name}
        (port,) = each["spec"]["ports"]
        assert port["targetPort"] in {known["name"] for known in container(name)["ports"]}
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        (each,) = of_kind(kind, BASE).values()
        assert each["spec"][field]["matchLabels"] == {"app": "chairlift-replica"}
    sources = of_kind("NetworkPolicy", BASE)["chairlift-replica"]["spec"]["ingress"][0]["from"]
    assert [each["podSelector"]["matchLabels"] for each in sources if "podSelector" in each] == [labels[2], labels[0]]
    for each in of_kind("RoleBinding", BASE).values():
        assert each["roleRef"]["name"] in of_kind("Role", BASE)
        assert [subject["name"] in accounts for subject in each["subjects"]] == [True]


def test_commands_are_valid_and_their_urls_name_what_the_manifests_make(tmp_path: Path) -> None:
    parser = build_parser()
    for name in DEPLOYMENTS:
        assert container(name)["command"] == ["chairlift"]
        check_command(parser, container(name)["args"])
        parser.parse_args(container(name)["args"])
    CertificateAuthority(tmp_path, "cluster").file.rename(tmp_path / "ca.crt")
    inside = {"environ": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "service_account": tmp_path}
    url = parse_workload_url(options("chairlift-autoscaler")["--cluster"], **inside)
    assert url.name in DEPLOYMENTS and url.namespace == "default"
    assert url.port in {port["name"] for port in container(url.name)["ports"]}
    source = KubernetesSource(options("chairlift-router")["--discovery"], **inside)
    assert source._service in of_kind("Service", BASE)
    for name in DEPLOYMENTS:
        (port,) = container(name)["ports"]
        assert options(name)["--port"] == str(port["containerPort"])


@pytest.mark.parametrize("name", ["chairlift-replica", "chairlift-router"])
def test_a_pod_has_the_time_to_drain(name: str) -> None:
    pause = int(container(name)["lifecycle"]["preStop"]["exec"]["command"][1])
    seconds = pause + int(options(name)["--drain-timeout"])
    assert seconds + 10 <= template(name)["spec"]["terminationGracePeriodSeconds"]


def test_every_process_is_probed_and_the_autoscalers_metrics_can_be_read_as_the_routers() -> None:
    for name in DEPLOYMENTS:
        assert container(name)["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert container(name)["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert options(name)["--host"] == "0.0.0.0"
    autoscaler, router = (template(f"chairlift-{name}") for name in ("autoscaler", "router"))
    assert autoscaler["metadata"]["annotations"] == router["metadata"]["annotations"]
    assert autoscaler["spec"]["volumes"] == router["spec"]["volumes"]
    assert {"--key-file", "--public-metrics"} <= options("chairlift-autoscaler").keys()


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
