"""workload_url.py: what a cluster's URL names, and messages for those that are not valid."""

from pathlib import Path

import pytest

from chairlift.cluster.kubernetes.workload_url import WorkloadKind, parse_workload_url
from chairlift.core.errors import ConfigError
from support_certificates import CertificateAuthority
from support_shares import for_each


def test_the_parts_and_their_defaults() -> None:
    url = parse_workload_url("kubernetes://prod/deployment/llm?server=http://h:1", environ={})
    assert (url.namespace, url.kind, url.name, url.port, url.scheme) == (
        "prod", WorkloadKind.DEPLOYMENT, "llm", "http", "http",
    )  # fmt: skip
    assert str(url) == "Deployment llm in namespace prod" and url.server.base_urls == ("http://h:1",)
    text = "kubernetes://prod/LeaderWorkerSet/llm?server=http://h&port=web&scheme=https&token_file=/t"
    url = parse_workload_url(text, environ={})
    assert (url.kind, url.port, url.scheme, url.server.token_file) == (
        WorkloadKind.LEADER_WORKER_SET, "web", "https", Path("/t"),
    )  # fmt: skip


def test_the_pods_cluster_is_the_default(tmp_path: Path) -> None:
    CertificateAuthority(tmp_path, "cluster").file.rename(tmp_path / "ca.crt")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    url = parse_workload_url("kubernetes://prod/deployment/llm", environ=environ, service_account=tmp_path)
    assert url.server.base_urls == ("https://10.0.0.1:443",)
    assert (url.server.token_file, url.server.ca_file) == (tmp_path / "token", tmp_path / "ca.crt")


@for_each(("text", "message"), [
    ("kubernetes://prod/deployment/llm", "needs a pod of the cluster"),
    ("kubernetes://prod/deployment", "should look like kubernetes://namespace/deployment/NAME or"),
    ("kubernetes://prod/deployment/a/b", "should look like"), ("kubernetes://prod/statefulset/a", "leaderworkerset"),
    ("kubernetes://prod:8/deployment/a", "should look like"), ("etcd://prod/deployment/a", "should look like"),
    ("kubernetes://prod/deployment/a?server=http://h&scheme=ftp", "must be http or https, got 'ftp'"),
    ("kubernetes://prod/deployment/a?prot=x", r"did you mean port\?"),
])  # fmt: skip
def test_urls_that_are_not_valid(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_workload_url(text, environ={})
