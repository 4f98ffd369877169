"""open_cluster: makes the cluster that `--cluster` names."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.cli.fleet_options import local_config
from chairlift.cluster.base import Cluster
from chairlift.core.errors import ConfigError
from chairlift.fleet.fleet_process import LogLines

LOCAL, RAY = "local", "ray"
STOP_MARGIN_SECONDS = 10.0
MAX_HOST_CHARS = 32
"""Characters of the host's name that the default name of a fleet has."""

WEBHOOK_FILES = {
    "cluster_token_file": "token_file", "cluster_tls_ca": "ca_file", "cluster_tls_cert": "cert_file",
    "cluster_tls_key": "key_file",
}  # fmt: skip
"""Settings of a webhook cluster, and their fields of WebhookConfig."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedCluster:
    """A cluster, and what a fleet must know about it.

    Attributes:
        cluster: the cluster.
        starts_specs: whether it starts what the fleet's ReplicaSpec says, so that the fleet can update its replicas.
        stop_seconds: time to wait for the end of all replicas at the end of the fleet; 0 leaves them running.
        log_lines: the replicas' output; None where the cluster keeps it.
    """

    cluster: Cluster
    starts_specs: bool
    stop_seconds: float
    log_lines: LogLines | None = None


def default_fleet_name(options: Mapping[str, Any]) -> str:
    """Return the name of a fleet on Ray: it is the same at the next start, and another one on another host or port."""
    host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower())[:MAX_HOST_CHARS].strip("-") or "host"
    return f"{host}-{options.get('port', 8000)}"


def open_cluster(options: Mapping[str, Any], folder: Path) -> OpenedCluster:
    """Return the cluster of the settings; `folder` has the state of local replicas. Raises ConfigError."""
    text = options.get("cluster", LOCAL)
    if text == LOCAL:
        from chairlift.cluster.local.local_cluster import LocalCluster

        config = local_config(options, folder)
        local = LocalCluster(config)
        seconds = 0.0 if options.get("keep_replicas") else config.stop_timeout + STOP_MARGIN_SECONDS
        return OpenedCluster(cluster=local, starts_specs=True, stop_seconds=seconds, log_lines=local.log_lines)
    if text == RAY or text.startswith((f"{RAY}:", f"{RAY}://")):
        from chairlift.cluster.ray.cluster import RayCluster
        from chairlift.cluster.ray.config import RayConfig

        address = text if text.startswith(f"{RAY}://") else text.partition(":")[2] or "auto"
        ray_config = RayConfig(fleet=options.get("fleet_name") or default_fleet_name(options), address=address)
        seconds = 0.0 if options.get("keep_replicas") else ray_config.stop_timeout_seconds + STOP_MARGIN_SECONDS
        return OpenedCluster(cluster=RayCluster(ray_config), starts_specs=True, stop_seconds=seconds)
    if text.startswith("kubernetes://"):
        from chairlift.cluster.kubernetes.cluster import KubernetesCluster

        return OpenedCluster(cluster=KubernetesCluster(text), starts_specs=False, stop_seconds=0.0)
    if text.startswith(("http://", "https://")):
        from chairlift.cluster.webhook import WebhookCluster, WebhookConfig

        files: dict[str, Any] = {
            field: Path(options[name]) for name, field in WEBHOOK_FILES.items() if options.get(name) is not None
        }  # fmt: skip
        if ("cert_file" in files) != ("key_file" in files):
            raise ConfigError(
                "cluster_tls_cert and cluster_tls_key belong together: give both or none", option="cluster_tls_cert"
            )
        webhook = WebhookConfig(url=text, **files)
        return OpenedCluster(cluster=WebhookCluster(webhook), starts_specs=True, stop_seconds=0.0)
    raise ConfigError(
        f"cluster {text!r} must be local, ray, ray:HOST:PORT, ray://HOST:PORT, kubernetes://NAMESPACE/deployment/NAME "
        "or the URL of a webhook", option="cluster",
    )  # fmt: skip
