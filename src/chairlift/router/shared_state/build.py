"""create_shared_state: the state of the `shared_state` setting, in memory or in Redis."""

from chairlift.core.clock import Clock
from chairlift.router.shared_state.base import SharedState
from chairlift.router.shared_state.local import LocalSharedState
from chairlift.router.shared_state.redis import RedisSharedState, RedisStateConfig
from chairlift.router.shared_state.redis_url import RedisTarget

SESSION_TTL_SECONDS = 3600.0
"""Seconds after which a session that is not used loses its replica."""

MAX_SESSIONS = 100_000
"""Number of sessions at most; the least recently used go first."""


def create_shared_state(
    url: str = "", *, password_file: str = "", ca_file: str = "", clock: Clock | None = None
) -> SharedState:
    """Return the state that a URL names, in memory for "". Raises ConfigError."""
    if not url:
        return LocalSharedState(SESSION_TTL_SECONDS, MAX_SESSIONS, clock)
    target = RedisTarget.parse(url, password_file)
    config = RedisStateConfig(
        target=target, ca_file=ca_file, session_ttl_seconds=SESSION_TTL_SECONDS, max_sessions=MAX_SESSIONS
    )
    return RedisSharedState(config, clock)
