"""make_registry: chooses a registry by the scheme of its URL."""

from collections.abc import Callable, Mapping

from chairlift.core.errors import ConfigError
from chairlift.web.registry.consul_client import CONSUL_FORM
from chairlift.web.registry.consul_registry import ConsulRegistry
from chairlift.web.registry.etcd_client import ETCD_FORM
from chairlift.web.registry.etcd_registry import EtcdRegistry
from chairlift.web.registry.replica_registration import Registry

REGISTRIES: Mapping[str, Callable[[str], Registry]] = {"etcd": EtcdRegistry, "consul": ConsulRegistry}


def make_registry(text: str) -> Registry:
    """Return the registry of a URL. Raises ConfigError with what is wrong."""
    scheme = text.partition("://")[0]
    if scheme not in REGISTRIES or "://" not in text:
        raise ConfigError(f"{text!r} names no registry; it should look like {ETCD_FORM} or {CONSUL_FORM}")
    return REGISTRIES[scheme](text)
