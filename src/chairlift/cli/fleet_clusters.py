"""open_cluster: makes the cluster that `--cluster` names."""

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
        ray_config = RayConfig(fleet=f"port-{options.get('port', 8000)}", address=address)
        seconds = 0.0 if options.get("keep_replicas") else ray_config.stop_timeout_seconds + STOP_MARGIN_SECONDS
        return OpenedCluster(cluster=RayCluster(ray_config), starts_specs=True, stop_seconds=seconds)
    if text.startswith("kubernetes://"):
        from chairlift.cluster.kubernetes.cluster import KubernetesCluster

        return OpenedCluster(cluster=KubernetesCluster(text), starts_specs=False, stop_seconds=0.0)
    if text.startswith(("http://", "https://")):
        from chairlift.cluster.webhook import WebhookCluster, WebhookConfig

        token = options.get("cluster_token_file")
        webhook = WebhookConfig(url=text, token_file=None if token is None else Path(token))
        return OpenedCluster(cluster=WebhookCluster(webhook), starts_specs=True, stop_seconds=0.0)
    raise ConfigError(
        f"cluster {text!r} must be local, ray, ray:HOST:PORT, ray://HOST:PORT, kubernetes://NAMESPACE/deployment/NAME "
        "or the URL of a webhook", option="cluster",
    )  # fmt: skip
