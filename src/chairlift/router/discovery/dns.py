"""DNSSource: the addresses of a name, or the targets of its SRV records; asked again when their TTL is over."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import dns.asyncresolver
import dns.exception
import dns.inet
import dns.name
import dns.nameserver
import dns.resolver

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.base import Snapshot
from chairlift.router.discovery.endpoint_parser import OPTION_FIELDS, parse_endpoint
from chairlift.router.endpoint import MAX_WEIGHT, Endpoint
from chairlift.web.registry.registry_url import MAX_PORT, parse_registry_url

MIN_TTL_SECONDS, MAX_TTL_SECONDS = 1.0, 300.0
"""Bounds of the time between two questions."""

NO_RECORDS_SECONDS = 5.0
"""Seconds after which a name without records is asked for again."""

QUERY_SECONDS = 5.0
"""Seconds that a question may take, with all repeats and all name servers."""

MAX_SRV_RECORDS = 1000
ADDRESS_FORM, SRV_FORM = "dns://replicas.example.com:8000", "dns+srv://_chairlift._tcp.example.com"
SRV_SCHEME = "dns+srv"
ZERO_WEIGHT_SHARE = 0.01
"""Weight of an SRV record with the weight 0, relative to the smallest other one (RFC 2782: a very small chance)."""


@dataclass(frozen=True, slots=True)
class _Records:
    """Answers of one question, and the seconds for which they hold."""

    values: tuple[str, ...]
    ttl: float


@dataclass(frozen=True, slots=True)
class _Target:
    """One SRV record."""

    host: str
    port: int
    priority: int
    weight: int


class DNSSource:
    """Replicas by name: A and AAAA records with a port of the URL, or SRV records with theirs."""

    def __init__(self, text: str) -> None:
        """Create the source of a URL dns://name:port or dns+srv://name. Raises ConfigError."""
        self._is_srv = text.startswith(f"{SRV_SCHEME}://")
        url = parse_registry_url(
            text, options={*OPTION_FIELDS, "scheme", "nameserver", "records"}, default_port=1 if self._is_srv else None,
            form=SRV_FORM if self._is_srv else ADDRESS_FORM,
        )  # fmt: skip
        host, _, port = url.require_one_host().rpartition(":")
        if url.path or "[" in host:
            raise ConfigError(f"{text!r} needs a name alone; it should look like {url.scheme}://replicas.example.com")
        self.name = text
        self._host, self._port = host, int(port)
        self._record_types = tuple(url.options.get("records", "A,AAAA").upper().split(","))
        if not set(self._record_types) <= {"A", "AAAA"}:
            raise ConfigError(f"the option records of {text!r} must be A, AAAA or A,AAAA")
        self._nameservers = _parse_nameservers(url.options.get("nameserver", ""), text)
        self._scheme = url.options.get("scheme", "http")
        self._defaults = {name: url.options[name] for name in OPTION_FIELDS if name in url.options}
        parse_endpoint({"url": f"{self._scheme}://localhost", **self._defaults})
        try:
            dns.name.from_text(host)
        except dns.exception.DNSException as error:
            raise ConfigError(f"{text!r} has a name that is none: {host!r}: {error}") from None

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the list, and again after each change that a question finds."""
        resolver, last = self._make_resolver(), None
        while True:
            snapshot, ttl = await (self._resolve_srv(resolver) if self._is_srv else self._resolve_name(resolver))
            if snapshot != last or not snapshot:  # each empty list counts
                yield snapshot
                last = snapshot
            await asyncio.sleep(min(max(ttl, MIN_TTL_SECONDS), MAX_TTL_SECONDS))

    def _make_resolver(self) -> dns.asyncresolver.Resolver:
        """Return a resolver without a cache. Raises DiscoveryFailed without a usable /etc/resolv.conf."""
        try:
            resolver = dns.asyncresolver.Resolver(configure=not self._nameservers)
        except dns.exception.DNSException as error:
            raise DiscoveryFailed(f"cannot read the system's name servers: {error}") from None
        if self._nameservers:
            resolver.nameservers = [dns.nameserver.Do53Nameserver(address, port) for address, port in self._nameservers]
        resolver.lifetime = QUERY_SECONDS
        resolver.timeout = QUERY_SECONDS / 2
        return resolver

    async def _resolve_name(self, resolver: dns.asyncresolver.Resolver) -> tuple[Snapshot, float]:
        records = await self._ask_addresses(resolver, self._host)
        return self._endpoints([(address, self._port, 1.0) for address in records.values]), records.ttl

    async def _resolve_srv(self, resolver: dns.asyncresolver.Resolver) -> tuple[Snapshot, float]:
        """Return the endpoints of the SRV records with the lowest priority number.

        The targets are resolved to addresses, except for https, where the name is that of the certificate.
        """
        answer = await _ask(resolver, self._host, "SRV")
        if answer is None:
            return (), NO_RECORDS_SECONDS
        if len(answer) > MAX_SRV_RECORDS:
            raise DiscoveryFailed(f"{self._host} has {len(answer)} SRV records, the limit is {MAX_SRV_RECORDS}")
        targets = [_Target(str(each.target).rstrip("."), each.port, each.priority, each.weight) for each in answer]
        first = min(target.priority for target in targets)
        targets = sorted(
            (each for each in targets if each.priority == first and each.host and each.port),
            key=lambda each: (each.host, each.port),
        )
        ttl, replicas = _ttl(answer), list[tuple[str, int, float]]()
        for target, weight in zip(targets, srv_weights([each.weight for each in targets]), strict=True):
            if self._scheme == "https":
                replicas.append((target.host, target.port, weight))
                continue
            records = await self._ask_addresses(resolver, target.host)
            ttl = min(ttl, records.ttl)
            replicas += [(address, target.port, weight) for address in records.values]
        return self._endpoints(replicas), ttl

    async def _ask_addresses(self, resolver: dns.asyncresolver.Resolver, host: str) -> _Records:
        """Return the addresses of a name in order, and their shortest TTL; no address for a name without records."""
        answers = [await _ask(resolver, host, record_type) for record_type in self._record_types]
        found = [answer for answer in answers if answer is not None]
        addresses = sorted({each.address for answer in found for each in answer})
        ttl = min(map(_ttl, found), default=NO_RECORDS_SECONDS)
        return _Records(tuple(addresses), ttl)

    def _endpoints(self, replicas: Sequence[tuple[str, int, float]]) -> Snapshot:
        """Return the endpoints of hosts, ports and weights; the options of the URL decide over the weights."""
        endpoints: dict[str, Endpoint] = {}
        for host, port, weight in replicas:
            name = f"[{host}]" if ":" in host else host
            endpoint = parse_endpoint({"url": f"{self._scheme}://{name}:{port}", "weight": weight, **self._defaults})
            endpoints.setdefault(endpoint.url, endpoint)
        return tuple(endpoints.values())


def srv_weights(weights: Sequence[int]) -> list[float]:
    """Return the endpoint weights of SRV weights, 0 to 65,535: their ratios stay, also of those above MAX_WEIGHT."""
    positive = [weight for weight in weights if weight]
    if not positive:
        return [1.0] * len(weights)
    scale = min(1.0, MAX_WEIGHT / max(positive))
    return [(weight or min(positive) * ZERO_WEIGHT_SHARE) * scale for weight in weights]


async def _ask(resolver: dns.asyncresolver.Resolver, host: str, record_type: str) -> dns.resolver.Answer | None:
    """Return the answer of a question, None for a name without such records. Raises DiscoveryFailed."""
    try:
        return await resolver.resolve(host, record_type, search=True)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        return None
    except (dns.exception.DNSException, OSError) as error:
        raise DiscoveryFailed(f"no answer for {record_type} of {host}: {str(error)[:200]}") from None


def _ttl(answer: dns.resolver.Answer) -> float:
    return float(answer.rrset.ttl) if answer.rrset is not None else NO_RECORDS_SECONDS


def _parse_nameservers(text: str, url: str) -> list[tuple[str, int]]:
    """Return addresses and ports of the option nameserver: 10.0.0.2 or 10.0.0.2:5353, several with commas."""
    servers = []
    for each in filter(None, text.split(",")):
        host, colon, port = each.rpartition(":") if each.count(":") == 1 or "]" in each else (each, "", "")
        if colon and (not port.isdecimal() or not 0 < int(port) <= MAX_PORT):
            raise ConfigError(f"the option nameserver of {url!r} must be an address and a port, got {each!r}")
        address = host.strip("[]")
        if not dns.inet.is_address(address):
            raise ConfigError(f"the option nameserver of {url!r} must be an address and a port, got {each!r}")
        servers.append((address, int(port) if colon else 53))
    return servers
