"""find_master: asks Sentinels, one after the other, for the address of the Redis server that is the master."""

from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError


class MasterNotFound(Exception):
    """No Sentinel names a master; the message has the reason of each."""


async def find_master(hosts: Sequence[tuple[str, int]], name: str, options: Mapping[str, Any]) -> tuple[str, int]:
    """Return host and port of the master of a name; `options` are those of the connections to the Sentinels.

    Raises MasterNotFound.
    """
    reasons = []
    for host, port in hosts:
        sentinel = Redis(host=host, port=port, **options)
        try:
            masters: Mapping[str, Any] = await sentinel.sentinel_masters()  # type: ignore[assignment]
        except (RedisError, OSError, TimeoutError) as error:
            reasons.append(f"{host}:{port}: {error}")
            continue
        finally:
            await sentinel.aclose()
        if (state := masters.get(name)) is None:
            reasons.append(f"{host}:{port} does not know it")
        elif not state["is_master"] or state["is_sdown"] or state["is_odown"]:
            reasons.append(f"{host}:{port} knows that it is down")
        else:
            return str(state["ip"]), int(state["port"])
    raise MasterNotFound(f"no Sentinel names a master for {name!r}: {'; '.join(reasons)}")
