"""create_shared_state: the state of the `shared_state` settings, in memory or in Redis."""

from chairlift.core.clock import Clock
from chairlift.router.shared_state.base import SharedState
from chairlift.router.shared_state.local import LocalSharedState
from chairlift.router.shared_state.redis import RedisSharedState, RedisStateConfig
from chairlift.router.shared_state.shared_state_config import SharedStateConfig

SESSION_TTL_SECONDS = 3600.0
"""Seconds after which a session that is not used loses its replica."""

MAX_SESSIONS = 100_000
"""Number of sessions at most; the least recently used go first."""


def create_shared_state(config: SharedStateConfig, *, clock: Clock | None = None) -> SharedState:
    """Return the state that a config names, in memory without a URL. Raises ConfigError without Redis' library."""
    if not config.url:
        return LocalSharedState(SESSION_TTL_SECONDS, MAX_SESSIONS, clock)
    return RedisSharedState(
        RedisStateConfig(
            target=config.target(), ca_file="" if config.tls_ca is None else str(config.tls_ca),
            session_ttl_seconds=SESSION_TTL_SECONDS, max_sessions=MAX_SESSIONS,
        ),
        clock,
    )  # fmt: skip
