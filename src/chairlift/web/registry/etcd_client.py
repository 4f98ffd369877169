"""EtcdClient: keys, leases and watches of etcd v3 through its JSON gateway.

A gateway calls the same methods as gRPC: POST /v3/kv/range, with keys and values in base64 and integers as text.
"""

import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.json_client import JSONClient, JSONClientConfig, JSONResponse
from chairlift.web.registry.registry_url import TLS_OPTIONS, RegistryURL, parse_registry_url

MAX_KEYS = 10_000
"""Most keys of a list; a prefix with more is not one of replicas."""

ETCD_FORM = "etcd://127.0.0.1:2379/chairlift/replicas"
ETCD_PORT = 2379


@dataclass(frozen=True, slots=True)
class EtcdKey:
    """A key with its value.

    Attributes:
        key: the whole key.
        value: its value.
        lease: id of the lease that the key ends with, 0 without one.
    """

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class EtcdChange:
    """What one message of a watch says.

    Attributes:
        puts: keys with new values.
        deletes: deleted keys.
        is_compacted: whether the revision that the watch began at is no longer kept; the keys must be listed again.
        revision: the store's revision; 0 if the message does not name it.
    """

    puts: tuple[EtcdKey, ...] = ()
    deletes: tuple[str, ...] = ()
    is_compacted: bool = False
    revision: int = 0


def parse_etcd_url(text: str, options: Collection[str] = ()) -> RegistryURL:
    """Parse a URL etcd://host:port[,host:port...]/prefix. Raises ConfigError."""
    url = parse_registry_url(
        text, options={*TLS_OPTIONS, "user", "password_file", *options}, default_port=ETCD_PORT, form=ETCD_FORM
    )
    if ("user" in url.options) != ("password_file" in url.options):
        raise ConfigError(f"the options user and password_file of {text!r} need each other")
    if not url.path:
        raise ConfigError(f"{text!r} has no prefix of keys after the host; it should look like {ETCD_FORM}")
    return url


def etcd_client_config(url: RegistryURL) -> JSONClientConfig:
    """Return how the cluster of a URL is reached. Raises ConfigError."""
    return JSONClientConfig(
        base_urls=url.base_urls(), ca_file=url.file("ca_file"), cert_file=url.file("cert_file"),
        key_file=url.file("key_file"),
    )  # fmt: skip


def key_prefix(url: RegistryURL) -> str:
    """Return what the keys of a URL's replicas begin with: /chairlift/replicas/."""
    return f"/{url.path}/"


class EtcdClient:
    """Calls of one etcd cluster; raises DiscoveryFailed for every failure."""

    def __init__(self, client: JSONClient, url: RegistryURL) -> None:
        """Create the client of the cluster of a URL, whose options may have a user and the file of its password."""
        self._client = client
        self._user, self._password_file = url.options.get("user", ""), url.file("password_file")
        self._headers: dict[str, str] = {}

    async def list_keys(self, prefix: str) -> tuple[tuple[EtcdKey, ...], int]:
        """Return the keys that begin with `prefix`, in order, and the revision of the store."""
        request = {"key": _base64(prefix), "range_end": _base64_end(prefix), "limit": str(MAX_KEYS + 1)}
        body = await self._post("/v3/kv/range", request)
        with _malformed("a range"):
            keys = tuple(map(_parse_key, body.get("kvs", ())))
            if len(keys) > MAX_KEYS:
                raise DiscoveryFailed(f"etcd has more than {MAX_KEYS} keys with the prefix {prefix!r}")
            return keys, int(body["header"]["revision"])

    @contextlib.asynccontextmanager
    async def watch(
        self, prefix: str, revision: int, *, idle_seconds: float
    ) -> AsyncIterator[AsyncIterator[EtcdChange]]:
        """Watch the keys that begin with `prefix` from `revision` on, until `idle_seconds` of silence."""
        create = {
            "key": _base64(prefix), "range_end": _base64_end(prefix), "start_revision": str(revision),
            "progress_notify": True,
        }  # fmt: skip
        await self._authenticate()
        async with self._client.stream(
            "POST", "/v3/watch", body={"create_request": create}, headers=self._headers, idle_seconds=idle_seconds
        ) as lines:
            yield _changes(lines)

    async def grant_lease(self, ttl_seconds: int) -> int:
        """Create a lease and return its id."""
        body = await self._post("/v3/lease/grant", {"TTL": str(ttl_seconds)})
        with _malformed("a lease"):
            return int(body["ID"])

    async def renew_lease(self, lease: int) -> bool:
        """Renew a lease for its whole time; return False for one that has ended."""
        body = await self._post("/v3/lease/keepalive", {"ID": str(lease)})
        with _malformed("a renewed lease"):
            return int(body["result"].get("TTL", 0)) > 0

    async def revoke_lease(self, lease: int) -> None:
        """End a lease, which deletes its keys; a lease that has ended is not an error."""
        response = await self._call("/v3/lease/revoke", {"ID": str(lease)})
        if response.status != HTTPStatus.OK and "lease not found" not in response.describe():
            raise DiscoveryFailed(f"etcd does not revoke the lease: {response.describe()}")

    async def put(self, key: str, value: bytes, lease: int) -> None:
        """Set a key that ends with a lease."""
        await self._post("/v3/kv/put", {"key": _base64(key), "value": _bytes_base64(value), "lease": str(lease)})

    async def lease_of(self, key: str) -> int | None:
        """Return the lease of a key, 0 if it has none, or None without the key."""
        body = await self._post("/v3/kv/range", {"key": _base64(key)})
        with _malformed("a key"):
            keys = tuple(map(_parse_key, body.get("kvs", ())))
            return keys[0].lease if keys else None

    async def _post(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        response = await self._call(path, request)
        if response.status != HTTPStatus.OK or not isinstance(response.body, dict):
            raise DiscoveryFailed(f"etcd answers {path} with {response.describe()}")
        return response.body

    async def _call(self, path: str, request: dict[str, Any]) -> JSONResponse:
        """Call a method, with a new token if the old one has expired."""
        await self._authenticate()
        response = await self._client.call("POST", path, body=request, headers=self._headers)
        if self._headers and response.status == HTTPStatus.UNAUTHORIZED:
            self._headers = {}
            await self._authenticate()
            response = await self._client.call("POST", path, body=request, headers=self._headers)
        return response

    async def _authenticate(self) -> None:
        """Get a token for the user of the URL, if there is one and no token yet."""
        if self._password_file is None or self._headers:
            return
        try:
            password = self._password_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise DiscoveryFailed(f"cannot read the password file {self._password_file}: {error}") from None
        body = {"name": self._user, "password": password}
        response = await self._client.call("POST", "/v3/auth/authenticate", body=body)
        if response.status != HTTPStatus.OK:
            raise DiscoveryFailed(f"etcd does not accept the user {self._user!r}: {response.describe()}")
        with _malformed("a token"):
            self._headers = {"authorization": str(response.body["token"])}


async def _changes(lines: AsyncIterator[Any]) -> AsyncIterator[EtcdChange]:
    """Yield what each line of a watch says."""
    async for line in lines:
        with _malformed("a watch"):
            if "error" in line:
                raise DiscoveryFailed(f"etcd ends the watch: {str(line['error'])[:200]}")
            result = line["result"]
            events, revision = result.get("events", ()), int(result.get("header", {}).get("revision", 0))
            if result.get("canceled"):
                if int(result.get("compact_revision", 0)) == 0:
                    raise DiscoveryFailed(f"etcd cancels the watch: {str(result.get('cancel_reason', ''))[:200]}")
                change = EtcdChange(is_compacted=True, revision=revision)
            else:
                puts = tuple(_parse_key(each["kv"]) for each in events if each.get("type", "PUT") == "PUT")
                deletes = tuple(_text(each["kv"]["key"]) for each in events if each.get("type") == "DELETE")
                change = EtcdChange(puts, deletes, revision=revision)
        yield change


@contextlib.contextmanager
def _malformed(name: str) -> Iterator[None]:
    """Raise DiscoveryFailed for an answer without the fields that etcd's answers have."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise DiscoveryFailed(f"etcd answers nonsense instead of {name}: {type(error).__name__}: {error}") from None


def _parse_key(body: dict[str, Any]) -> EtcdKey:
    value = base64.b64decode(body.get("value", ""), validate=True)
    return EtcdKey(_text(body["key"]), value, int(body.get("lease", 0)))


def _text(encoded: str) -> str:
    return base64.b64decode(encoded, validate=True).decode()


def _base64(text: str) -> str:
    return _bytes_base64(text.encode())


def _bytes_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _base64_end(prefix: str) -> str:
    """Return the first key after all that begin with a prefix."""
    data = prefix.encode()
    assert data, "the prefix is empty"  # UTF-8 has no byte 0xFF, so the last one has a successor
    return _bytes_base64(data[:-1] + bytes([data[-1] + 1]))
