"""open_cluster: `--cluster` names where replicas run."""

import socket
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.fleet_clusters import default_fleet_name, open_cluster
from chairlift.cluster.kubernetes.cluster import KubernetesCluster
from chairlift.cluster.local.local_cluster import LocalCluster
from chairlift.cluster.ray.config import RayConfig
from chairlift.cluster.webhook import WebhookCluster
from chairlift.core.errors import ConfigError


def test_processes_of_this_machine_end_with_the_fleet_unless_they_are_kept(tmp_path: Path) -> None:
    opened = open_cluster({}, tmp_path)
    assert isinstance(opened.cluster, LocalCluster) and opened.starts_specs and opened.log_lines is not None
    assert opened.stop_seconds > 60
    assert open_cluster({"cluster": "local", "keep_replicas": True}, tmp_path).stop_seconds == 0


@pytest.mark.parametrize(("text", "kind", "starts_specs"), [
    ("http://127.0.0.1:9/scale", WebhookCluster, True),
    ("kubernetes://ns/deployment/d?server=http://127.0.0.1:9", KubernetesCluster, False),
])  # fmt: skip
def test_replicas_of_others_outlive_the_fleet(text: str, kind: type, starts_specs: bool, tmp_path: Path) -> None:
    opened = open_cluster({"cluster": text}, tmp_path)
    assert isinstance(opened.cluster, kind) and opened.starts_specs is starts_specs
    assert opened.stop_seconds == 0 and opened.log_lines is None


@pytest.mark.parametrize("text", ["", "docker", "rays", "kubernetes:ns", "ftp://a"])
def test_an_unknown_cluster_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be local, ray") as caught:
        open_cluster({"cluster": text}, tmp_path)
    assert caught.value.details["option"] == "cluster"


@pytest.mark.parametrize(("text", "address"), [
    ("ray", "auto"), ("ray:10.0.0.1:6379", "10.0.0.1:6379"), ("ray://10.0.0.1:10001", "ray://10.0.0.1:10001"),
])  # fmt: skip
def test_the_address_of_ray(text: str, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configs: list[Any] = []
    monkeypatch.setattr("chairlift.cluster.ray.cluster.RayCluster", configs.append)
    monkeypatch.setattr(socket, "gethostname", lambda: "GPU_1.example.org.")
    opened = open_cluster({"cluster": text, "port": 9000}, tmp_path)
    (config,) = configs
    assert (config.address, config.fleet) == (address, "gpu-1-example-org-9000")
    assert opened.starts_specs and opened.stop_seconds > config.stop_timeout_seconds


@pytest.mark.parametrize("host", ["h" * 63, "", "..", f"{'a' * 31}.b"])
def test_the_default_name_of_a_fleet_is_valid_whatever_the_host_is_called(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    names = {default_fleet_name({"port": port}) for port in (8000, 65535)}
    assert {RayConfig(fleet=name).fleet for name in names} == names and len(names) == 2


def test_a_fleet_on_ray_has_the_name_that_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configs: list[Any] = []
    monkeypatch.setattr("chairlift.cluster.ray.cluster.RayCluster", configs.append)
    open_cluster({"cluster": "ray", "fleet_name": "blue"}, tmp_path)
    assert configs[0].fleet == "blue"


def test_a_webhook_gets_its_token_and_its_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configs: list[Any] = []
    monkeypatch.setattr("chairlift.cluster.webhook.WebhookCluster", configs.append)
    files = {"cluster_token_file": "t", "cluster_tls_ca": "ca", "cluster_tls_cert": "cert", "cluster_tls_key": "key"}
    open_cluster({"cluster": "https://example.org/hook", **files}, tmp_path)
    (config,) = configs
    found = (config.token_file, config.ca_file, config.cert_file, config.key_file)
    assert found == (Path("t"), Path("ca"), Path("cert"), Path("key"))
    with pytest.raises(ConfigError, match="give both or none"):
        open_cluster({"cluster": "https://example.org/hook", "cluster_tls_key": "key"}, tmp_path)
