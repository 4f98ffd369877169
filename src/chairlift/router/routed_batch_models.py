"""routed_batch_models: the models of a router, for its batches."""

from chairlift.router.router import Router
from chairlift.web.batch_api.batch_models import BatchModels

MODEL_WAIT_SECONDS = 300.0
"""Seconds that a new batch waits for a model that no replica serves: after a start, replicas are found one by one."""


def routed_batch_models(router: Router) -> BatchModels:
    """Return the models of a router's batches.

    While no replica is ready and none was, requests that the router holds are sent for any model: only these start a
    replica.
    """

    def is_held() -> bool:
        return router.hold.is_enabled and not router.is_ready

    def why_not_ready(model: str) -> str:
        pools, now = router.config.routes.pools_of(model, router.models), router.clock.now()
        if is_held() or any(router.replicas.has_usable(now, pool) for pool in pools):
            return ""
        return f"no replica of the model {model!r} is ready"

    return BatchModels(
        router.resolve_model, has_models=lambda: bool(router.models), is_held=lambda: is_held() and not router.models,
        wait_seconds=MODEL_WAIT_SECONDS, why_not_ready=why_not_ready,
    )  # fmt: skip
