"""warm_up: serves its requests, leaves no cached block, and does nothing where the model is too short for it."""

from chairlift.bench.offline import warm_up
from chairlift.bench.offline.warm_up import WARM_UP
from support_services import fake_service


def test_the_warm_up_leaves_no_trace_and_fits_the_smallest_model() -> None:
    requests, _, output = WARM_UP
    service = fake_service()
    warm_up.warm_up(service)
    assert service.client.load().output_tokens == requests * output
    assert service.client.cache_state()["cached_blocks"] == 0
    service.client.close()
    service = fake_service(max_model_len=3)
    warm_up.warm_up(service)
    assert service.client.load().output_tokens == 0
    service.client.close()
