"""Manifests in tests: read strictly, checked against the official models and schemas, and against each other."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes
import yaml
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from chairlift.cli.command_line import build_parser, check_command

Object = dict[str, Any]

SCHEMA_VERSION = "1.34"
"""Version of Kubernetes whose schemas count."""

SCHEMAS = f"kubernetes-json-schema/v{SCHEMA_VERSION}.0-local-strict"

MODELS = {"v1": "V1", "apps/v1": "V1", "policy/v1": "V1", "autoscaling/v2": "V2",
          "networking.k8s.io/v1": "V1", "rbac.authorization.k8s.io/v1": "V1"}  # fmt: skip
CUSTOM = {
    "ScaledObject": ("keda.sh/v1alpha1", {
        "scaleTargetRef", "pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount", "triggers",
    }),
    "PodMonitor": ("monitoring.coreos.com/v1", {"selector", "jobLabel", "podMetricsEndpoints"}),
}  # fmt: skip
"""Kinds of other projects: their API and the fields of `spec` that are used here; no schema of them is at hand."""


class StrictLoader(yaml.CSafeLoader):
    """Refuses a mapping that has a key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]  # type: ignore[no-untyped-call]
        assert len(keys) == len(set(keys)), f"a key occurs twice in {keys}"
        return super().construct_mapping(node, deep)


def read(text: str) -> list[Object]:
    return [each for each in yaml.load_all(text, StrictLoader) if each is not None]


def documents(*paths: Path) -> list[Object]:
    return [each for path in paths for each in read(path.read_text("utf-8"))]


def of_kind(kind: str, found: Iterable[Object]) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


@cache
def schemas() -> "Registry[Any]":
    """Return the definitions to which the schemas refer; read once, because they are large."""
    resource = Resource.from_contents(schema_contents(f"{SCHEMAS}/_definitions.json", SCHEMA_VERSION))
    return Registry().with_resource(resource.id() or "", resource)


@cache
def schema_of(kind: str, version: str) -> Draft202012Validator:
    """Return the strict schema of a kind: it allows no unknown field."""
    group, _, number = version.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], number) if part)
    schema = schema_contents(f"{SCHEMAS}/{name}.json", SCHEMA_VERSION)
    return Draft202012Validator(schema, registry=schemas())


def check_object(each: Object) -> None:
    """Check an object against the strict schema of its kind, and against the client's model.

    What the client's model does not know is missing when it writes the object again.
    """
    if each["kind"] in CUSTOM:
        version, fields = CUSTOM[each["kind"]]
        assert each["apiVersion"] == version and set(each) == {"apiVersion", "kind", "metadata", "spec"}
        assert set(each["spec"]) <= fields
        return
    schema_of(each["kind"], each["apiVersion"]).validate(each)
    client = kubernetes.client.ApiClient()
    parsed = client._ApiClient__deserialize(each, MODELS[each["apiVersion"]] + each["kind"])
    assert client.sanitize_for_serialization(parsed) == each


class Deployed:
    """A set of objects that are applied together.

    Attributes:
        objects: all of them.
        deployments: the Deployments by name.
    """

    def __init__(self, objects: list[Object]) -> None:
        self.objects, self.deployments = objects, of_kind("Deployment", objects)

    def pod(self, name: str) -> Object:
        return dict(self.deployments[name]["spec"]["template"])

    def container(self, name: str) -> Object:
        (found,) = self.pod(name)["spec"]["containers"]
        return dict(found)

    def options(self, name: str) -> dict[str, str]:
        """Return the flags of a Deployment's command; `--a b` and `--a=b` alike."""
        words = [part for word in self.container(name)["args"][1:] for part in word.split("=", 1)]
        flags = [number for number, word in enumerate(words) if word.startswith("--")]
        return {words[at]: " ".join(words[at + 1 : end]) for at, end in zip(flags, [*flags[1:], None], strict=True)}

    def selected(self, selector: Mapping[str, str]) -> list[str]:
        """Return the Deployments whose pods have these labels."""
        return [name for name in self.deployments if selector.items() <= self.pod(name)["metadata"]["labels"].items()]

    def check_references(self) -> None:
        """Check that what an object names is there: pods of selectors, ports, accounts, claims, files, roles."""
        assert len({(each["kind"], each["metadata"]["name"]) for each in self.objects}) == len(self.objects)
        for name, each in self.deployments.items():
            assert self.selected(each["spec"]["selector"]["matchLabels"]) == [name]
            for spread in self.pod(name)["spec"].get("topologySpreadConstraints", ()):
                assert self.selected(spread["labelSelector"]["matchLabels"]) == [name]
            self._check_pod(name)
        for each in of_kind("Service", self.objects).values():
            (name,) = self.selected(each["spec"]["selector"])
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= self._ports(name)
        for each in of_kind("PodDisruptionBudget", self.objects).values():
            assert len(self.selected(each["spec"]["selector"]["matchLabels"])) == 1
        for each in of_kind("NetworkPolicy", self.objects).values():
            (name,) = self.selected(each["spec"]["podSelector"]["matchLabels"])
            for rule in each["spec"]["ingress"]:
                assert {port["port"] for port in rule["ports"]} <= self._ports(name)
                for source in rule.get("from", ()):
                    assert "podSelector" not in source or self.selected(source["podSelector"]["matchLabels"])
        accounts = of_kind("ServiceAccount", self.objects)
        for each in of_kind("RoleBinding", self.objects).values():
            assert each["roleRef"]["name"] in of_kind("Role", self.objects)
            assert {subject["name"] for subject in each["subjects"]} <= accounts.keys()

    def _ports(self, name: str) -> set[str]:
        return {port["name"] for port in self.container(name)["ports"]}

    def _check_pod(self, name: str) -> None:
        pod, container = self.pod(name)["spec"], self.container(name)
        assert pod["serviceAccountName"] in of_kind("ServiceAccount", self.objects)
        probes = [value["httpGet"] for key, value in container.items() if key.endswith("Probe")]
        assert len(probes) == 3 and {probe["port"] for probe in probes} <= self._ports(name)
        assert {probe["path"] for probe in probes} <= {"/livez", "/readyz"}
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
        for each in volumes.values():
            if "configMap" in each:
                assert each["configMap"]["name"] in of_kind("ConfigMap", self.objects)
            if "persistentVolumeClaim" in each:
                assert each["persistentVolumeClaim"]["claimName"] in of_kind("PersistentVolumeClaim", self.objects)
        for flag, value in self.options(name).items():
            if flag.endswith(("-file", "config")):
                folder, _, file = value.rpartition("/")
                (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == folder]
                config = volumes[mount["name"]].get("configMap")
                assert config is None or file in of_kind("ConfigMap", self.objects)[config["name"]]["data"]

    def check_commands(self) -> None:
        """Check that the program's own parser takes each command, and that its port is that of the container."""
        for name in self.deployments:
            words = self.container(name)["args"]
            parser = build_parser(words)
            assert self.container(name)["command"] == ["chairlift"]
            check_command(parser, words)
            parser.parse_args(words)
            (port,) = self.container(name)["ports"]
            assert self.options(name)["--port"] == str(port["containerPort"])
            assert self.options(name)["--host"] == "0.0.0.0"

    def check_rights(self) -> None:
        """Check that no container has a right that it does not need, and that each has limits."""
        for name in self.deployments:
            pod, container = self.pod(name)["spec"], self.container(name)
            assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]
            writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
            assert "/tmp" in writable <= {"/tmp", "/var/cache/chairlift"}

    def check_drain(self, name: str) -> None:
        """Check that a pod has the time to drain before it is killed."""
        pause = int(self.container(name)["lifecycle"]["preStop"]["exec"]["command"][1])
        seconds = pause + int(self.options(name)["--drain-timeout"])
        assert seconds + 10 <= self.pod(name)["spec"]["terminationGracePeriodSeconds"]
