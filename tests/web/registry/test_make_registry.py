"""make_registry: the scheme of a URL decides, and the error of another URL names those that there are."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.web.registry.consul_registry import ConsulRegistry
from chairlift.web.registry.etcd_registry import EtcdRegistry
from chairlift.web.registry.make_registry import make_registry


def test_the_scheme_decides() -> None:
    assert isinstance(make_registry("etcd://h/p"), EtcdRegistry)
    assert isinstance(make_registry("consul://h/s"), ConsulRegistry)


@pytest.mark.parametrize("text", ["", "etcd", "redis://h", "http://h", "/etc/replicas"])
def test_a_url_of_no_registry_names_those_that_there_are(text: str) -> None:
    with pytest.raises(ConfigError, match=r"etcd://127\.0\.0\.1:2379/chairlift/replicas or consul://"):
        make_registry(text)
