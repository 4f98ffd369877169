"""warm_up: serves its requests, leaves no cached block, and does nothing where the model is too short for it."""

from chairlift.bench.offline import warm_up
from chairlift.bench.offline.warm_up import WARM_UP
from support_services import fake_service


def test_the_warm_up_leaves_no_trace_and_fits_the_smallest_model() -> None:
    requests, _, output = WARM_UP
    service = fake_service()
    order: list[str] = []
    flush, own = service.client.flush_cache, service.client.warmup
    service.client.flush_cache = lambda: order.append("flush") or flush()  # type: ignore[method-assign]
    service.client.warmup = lambda: order.append("warm-up") or own()  # type: ignore[method-assign]
    warm_up.warm_up(service)
    assert order == ["flush", "warm-up"], "pages are populated behind what the requests have used"
    assert service.client.load().output_tokens == requests * output
    assert service.client.cache_state()["cached_blocks"] == 0
    service.client.close()
    service = fake_service(max_model_len=3)
    warm_up.warm_up(service)
    assert service.client.load().output_tokens == 0
    service.client.close()
