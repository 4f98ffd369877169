"""WorkloadURL: the parts of kubernetes://namespace/deployment/NAME, and how its API server is reached."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from chairlift.cluster.kubernetes.api_resources import DEPLOYMENTS, LEADER_WORKER_SETS, Resource
from chairlift.core.errors import ConfigError
from chairlift.web.registry.json_client import JSONClientConfig
from chairlift.web.registry.kubernetes_client import SERVER_OPTIONS, SERVICE_ACCOUNT, find_api_server, parse_namespace
from chairlift.web.registry.registry_url import parse_registry_url

FORM = "kubernetes://namespace/deployment/NAME"
DEFAULT_PORT = "http"


class WorkloadKind(StrEnum):
    """What runs the pods. The value is the kind of the object, as `scaleTargetRef` of an autoscaler names it."""

    DEPLOYMENT = "Deployment"
    LEADER_WORKER_SET = "LeaderWorkerSet"

    @property
    def resource(self) -> Resource:
        """The resource of the API."""
        return DEPLOYMENTS if self is WorkloadKind.DEPLOYMENT else LEADER_WORKER_SETS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadURL:
    """A workload whose pods are replicas.

    Attributes:
        text: the URL as the user wrote it.
        namespace: namespace of the workload.
        kind: Deployment or LeaderWorkerSet.
        name: name of the workload.
        port: name or number of the container port on which a replica listens.
        scheme: http or https, of the replicas.
        server: how the API server is reached.
    """

    text: str
    namespace: str
    kind: WorkloadKind
    name: str
    port: str
    scheme: str
    server: JSONClientConfig

    def __str__(self) -> str:
        return f"{self.kind} {self.name} in namespace {self.namespace}"


def parse_workload_url(
    text: str, *, environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> WorkloadURL:
    """Parse a URL. Raises ConfigError with what is wrong."""
    url = parse_registry_url(text, options={*SERVER_OPTIONS, "port", "scheme"}, default_port=1, form=FORM)
    namespace = parse_namespace(url, FORM)
    kinds = {kind.lower(): kind for kind in WorkloadKind}
    kind, _, name = url.path.partition("/")
    if url.scheme != "kubernetes" or kind.lower() not in kinds or not name or "/" in name:
        raise ConfigError(f"{text!r} should look like {FORM} or kubernetes://namespace/leaderworkerset/NAME")
    scheme = url.options.get("scheme", "http")
    if scheme not in {"http", "https"}:
        raise ConfigError(f"the option scheme of {text!r} must be http or https, got {scheme!r}")
    return WorkloadURL(
        text=text, namespace=namespace, kind=kinds[kind.lower()], name=name, scheme=scheme,
        port=url.options.get("port", DEFAULT_PORT), server=find_api_server(url, environ, service_account),
    )  # fmt: skip
