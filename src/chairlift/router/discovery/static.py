"""StaticSource: the replicas that flags name, a list that never changes."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from chairlift.core.errors import ConfigError
from chairlift.router.discovery.base import Snapshot
from chairlift.router.discovery.endpoint_parser import OPTION_FIELDS, parse_endpoint
from chairlift.router.endpoint import Endpoint, shown_url


class StaticSource:
    """A list that never changes."""

    def __init__(self, endpoints: Sequence[Endpoint], name: str = "--replica") -> None:
        self.name = name
        self._endpoints = tuple(endpoints)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> "StaticSource":
        """Return the source of `--replica` values. Raises ConfigError."""
        endpoints = [parse_replica(text) for text in texts]
        if len({endpoint.url for endpoint in endpoints}) < len(endpoints):
            urls = [endpoint.url for endpoint in endpoints]
            twice = next(url for url in urls if urls.count(url) > 1)
            raise ConfigError(f"the replica {twice} is given twice; remove one of them", option="replica")
        return cls(endpoints)

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the list, then wait forever."""
        yield self._endpoints
        await asyncio.Event().wait()


def parse_replica(text: str) -> Endpoint:
    """Return the endpoint of a `--replica` value: `http://10.0.0.7:8000;weight=2;models=a,b`. Raises ConfigError."""
    url, *pairs = text.split(";")
    fields = {"url": url}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if name.strip() not in OPTION_FIELDS or not equals:
            known = ", ".join(f"{each}=..." for each in OPTION_FIELDS)
            raise ConfigError(f"{pair!r} of the replica {shown_url(text)!r} is none of {known}", option="replica")
        fields[name.strip()] = value.strip()
    try:
        return parse_endpoint(fields)
    except ConfigError as error:
        raise ConfigError(f"replica {shown_url(text)!r}: {error}", option="replica") from None
