"""StaticSource: replicas of flags."""

import asyncio

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.discovery.static import StaticSource, parse_replica
from chairlift.router.endpoint import Endpoint
from support_discovery import watching


def test_flags_are_one_list_that_stays() -> None:
    async def scenario() -> None:
        source = StaticSource.parse(["10.0.0.7:8000", "http://b;weight=2;models=x,y;zone=z;kind=openai;version=v"])
        async with watching(source) as reader:
            first, second = await reader.next()
            assert first == Endpoint(url="http://10.0.0.7:8000")
            assert (second.weight, second.models, second.zone, second.version) == (2, ("x", "y"), "z", "v")
            with pytest.raises(TimeoutError):
                await reader.next(0.01)

    asyncio.run(scenario())


@pytest.mark.parametrize(("text", "message"), [
    ("ftp://a", "replica 'ftp://a'"), ("a;weight=x", "weight must be a number"),
    ("a;wait=1", "'wait=1' of the replica"),
    ("a;weight", "is none of weight=..., models=..."), ("a;url=b", "'url=b' of the replica"),
])  # fmt: skip
def test_flags_that_are_not_valid(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_replica(text)
    for written in (f"http://u:secret@{text}", f"u:secret@{text}") if "://" not in text else ():
        with pytest.raises(ConfigError) as caught:
            parse_replica(written)
        assert "secret" not in caught.value.message


def test_a_replica_given_twice() -> None:
    with pytest.raises(ConfigError, match="the replica http://a is given twice"):
        StaticSource.parse(["a", "http://A:80/"])
