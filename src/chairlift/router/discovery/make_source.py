"""make_source: chooses a discovery source by the scheme of its URL."""

from collections.abc import Callable, Mapping
from pathlib import Path

from chairlift.core.errors import ConfigError
from chairlift.router.discovery.base import DiscoverySource
from chairlift.router.discovery.consul import ConsulSource
from chairlift.router.discovery.dns import DNSSource
from chairlift.router.discovery.etcd import EtcdSource
from chairlift.router.discovery.file import FileSource
from chairlift.router.discovery.kubernetes import KubernetesSource

FORMS = (
    "file:replicas.yaml, dns://name:8000, dns+srv://_chairlift._tcp.name, consul://127.0.0.1:8500/chairlift, "
    "etcd://127.0.0.1:2379/chairlift/replicas or kubernetes://namespace/service?port=http"
)


def _make_file_source(text: str) -> FileSource:
    path = text.removeprefix("file:").removeprefix("//")
    if not path:
        raise ConfigError(f"{text!r} names no file; it should look like file:replicas.yaml")
    return FileSource(Path(path).expanduser())


SOURCES: Mapping[str, Callable[[str], DiscoverySource]] = {
    "file": _make_file_source, "dns": DNSSource, "dns+srv": DNSSource, "consul": ConsulSource, "etcd": EtcdSource,
    "kubernetes": KubernetesSource,
}  # fmt: skip


def make_source(text: str) -> DiscoverySource:
    """Return the source of a URL. Raises ConfigError with what is wrong."""
    scheme = text.partition(":")[0]
    if scheme in {"http", "https"}:
        raise ConfigError(f"{text!r} is one replica, which --replica takes; a discovery source is {FORMS}")
    if scheme not in SOURCES or ":" not in text:
        raise ConfigError(f"{text!r} is no discovery source; it should look like {FORMS}")
    try:
        return SOURCES[scheme](text)
    except ConfigError as error:
        raise ConfigError(str(error), option="discovery") from None
