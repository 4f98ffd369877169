"""Routers for tests of the shared state: states, limiters, and bounded waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from chairlift.router.shared_state.redis import RedisSharedState, RedisStateConfig
from chairlift.router.shared_state.redis_connection import RedisTiming
from chairlift.router.shared_state.redis_url import RedisTarget
from chairlift.router.shared_state.tenant_limiter import SharedTenantLimiter
from chairlift.web.tenant_limits import TenantLimits
from support_services_redis import RedisServer

FAST = RedisTiming(call_seconds=1, retry_seconds=0.05, renew_seconds=0.05, lease_seconds=5)
LIMITS = TenantLimits(tenant_requests_per_minute=600, tenant_tokens_per_minute=10_000, tenant_max_open_requests=5)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.005)


class Routers:
    """Routers of one fleet: their states, and a limiter of each."""

    def __init__(self, server: RedisServer, number: int, limits: TenantLimits, **config: Any) -> None:
        config.setdefault("timing", FAST)
        target = RedisTarget.parse(server.url)
        self.states = [RedisSharedState(RedisStateConfig(target=target, **config)) for _ in range(number)]
        self.limiters = [SharedTenantLimiter(limits, state.tenant_usage) for state in self.states]

    async def wait_for_renewals(self, times: int) -> None:
        """Wait until every router has renewed its lease `times` more times, and so read what the others eject."""
        numbers = [0] * len(self.states)
        listeners = [state._connection._on_renewal for state in self.states]

        def count(index: int, reply: Any) -> None:
            listeners[index](reply)
            numbers[index] += 1

        for index, state in enumerate(self.states):
            state._connection.set_renewal_listener(partial(count, index))
        await until(lambda: min(numbers) >= times)
        for state, listener in zip(self.states, listeners, strict=True):
            state._connection.set_renewal_listener(listener)

    @property
    def are_connected(self) -> bool:
        return all(state.status().is_connected for state in self.states)

    @property
    def are_disconnected(self) -> bool:
        return not any(state.status().is_connected for state in self.states)


def run_routers(
    server: RedisServer, test: Callable[[Routers], Awaitable[None]], limits: TenantLimits = LIMITS, number: int = 2,
    **config: Any,
) -> None:  # fmt: skip
    async def run() -> None:
        routers = Routers(server, number, limits, **config)
        for state in routers.states:
            await state.start()
        try:
            assert routers.are_connected
            await test(routers)
        finally:
            for state in routers.states:
                await state.close()

    asyncio.run(run())
