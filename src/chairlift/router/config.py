"""RouterConfig: settings of the router."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.core.errors import ConfigError
from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.attempts.hedging import HedgeConfig
from chairlift.router.attempts.retry_budget import RetryBudgetConfig
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.webhook_notifier import NotifyConfig
from chairlift.router.model_aliases_and_canaries import ModelRoutes
from chairlift.router.policies.registry import POLICY_NAMES
from chairlift.router.proxy.upstream import UpstreamConfig
from chairlift.router.shared_state.shared_state_config import SharedStateConfig
from chairlift.web.service.http_config import HttpConfig

COOKIE_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
NO_ROUTES: Mapping[str, tuple[tuple[str, float], ...]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Every setting of the router but its listen address and its discovery sources.

    Attributes:
        policy: name of the routing policy.
        session_header: request header whose value keeps a session on one replica, in lower case.
        session_cookie: cookie that does the same; "" for none.
        routes: aliases and canaries of model names.
        attempts: limits of the attempts of a request.
        retry_budget: limits of the retries of all requests together.
        hedging: second attempts for late first tokens; None for none.
        health: health checks and ejection.
        upstream: keys and TLS files for the replicas.
        notify: where changes of replicas' states are reported; None for nowhere.
        shared_state: where the state is that routers share.
        hold_timeout: seconds for which requests wait while no replica is ready; 0 rejects them at once.
        empty_grace_seconds: seconds after which an empty list of a source is believed.
        http: the settings that every HTTP service has.
        seed: seed of the policies' random choices.
    """

    policy: str = "prefix"
    session_header: str = "x-session-id"
    session_cookie: str = ""
    routes: ModelRoutes = field(default_factory=lambda: ModelRoutes(NO_ROUTES))
    attempts: AttemptLimits = field(default_factory=AttemptLimits)
    retry_budget: RetryBudgetConfig = field(default_factory=RetryBudgetConfig)
    hedging: HedgeConfig | None = None
    health: HealthConfig = field(default_factory=HealthConfig)
    upstream: UpstreamConfig = field(default_factory=UpstreamConfig)
    notify: NotifyConfig | None = None
    shared_state: SharedStateConfig = field(default_factory=SharedStateConfig)
    hold_timeout: float = 0.0
    empty_grace_seconds: float = 60.0
    http: HttpConfig = field(default_factory=HttpConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.policy not in POLICY_NAMES:
            raise ConfigError(f"policy must be one of {', '.join(POLICY_NAMES)}; got {self.policy!r}", option="policy")
        if not HEADER_NAME.fullmatch(self.session_header):
            raise ConfigError(
                f"session_header must be a header name in lower case, got {self.session_header!r}",
                option="session_header",
            )
        if self.session_cookie and not COOKIE_NAME.fullmatch(self.session_cookie):
            raise ConfigError(
                f"session_cookie must be a cookie's name, got {self.session_cookie!r}", option="session_cookie"
            )
        if not 0 <= self.hold_timeout < float("inf"):
            raise ConfigError(
                f"hold_timeout must be at least 0 seconds, got {self.hold_timeout:g}", option="hold_timeout"
            )
        if not 0 <= self.empty_grace_seconds < float("inf"):
            raise ConfigError(
                f"empty_grace must be at least 0 seconds, got {self.empty_grace_seconds:g}", option="empty_grace"
            )
