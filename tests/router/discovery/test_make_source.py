"""make_source: the scheme of a URL decides the source, and a URL that is not valid is an error."""

from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.discovery.consul import ConsulSource
from chairlift.router.discovery.dns import DNSSource
from chairlift.router.discovery.etcd import EtcdSource
from chairlift.router.discovery.file import FileSource
from chairlift.router.discovery.kubernetes import KubernetesSource
from chairlift.router.discovery.make_source import SOURCES, make_source
from support_shares import for_each


def test_the_scheme_decides_and_the_name_is_the_text(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("[]", encoding="utf-8")
    expected = {
        f"file:{tmp_path}/r.yaml": FileSource, "dns://h:1": DNSSource,
        "dns+srv://_x._tcp.h": DNSSource, "consul://h/s": ConsulSource, "etcd://h/p": EtcdSource,
        "kubernetes://n/s?server=http://h": KubernetesSource,
    }  # fmt: skip
    for text, kind in expected.items():
        source = make_source(text)
        assert type(source) is kind and source.name == text
    assert {text.partition(":")[0] for text in expected} == SOURCES.keys()
    assert type(make_source(f"file://{tmp_path}/r.yaml")) is FileSource


@for_each(("text", "message"), [
    ("", "is no discovery source; it should look like file:"), ("redis://h", "is no discovery source"),
    ("http://h:8000", "is one replica, which --replica takes"), ("etcd", "is no discovery source"),
    ("file:", "names no file"), ("etcd://h", "no prefix of keys"), ("file:/nowhere/r.yaml", "cannot read"),
])  # fmt: skip
def test_urls_that_are_not_valid(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_source(text)
    assert text in ("", "redis://h", "http://h:8000", "etcd") or error.value.details == {"option": "discovery"}
