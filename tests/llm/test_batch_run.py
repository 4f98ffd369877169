"""run_batch: bounded submission, aborting open requests, and an engine that fails in the middle."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from chairlift.core.errors import EngineDead
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.step_plan import StepPlan
from chairlift.llm.batch_run import run_batch
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_service import TextService
from support_services import FAKE, fake_service, is_idle, tokens_of, wait_until

SEEDED = SamplingParams(max_tokens=8, seed=3)


@pytest.fixture
def service() -> Iterator[TextService]:
    service = fake_service(replace(FAKE, seconds_per_step=0.001))
    yield service
    service.client.close()


def make_processors(service: TextService, count: int, params: SamplingParams = SEEDED) -> list[OutputProcessor]:
    return [service.prepare_completion(f"prompt {number}", params) for number in range(count)]


def test_every_request_gets_one_last_event_and_the_engine_has_let_go(service: TextService) -> None:
    processors = make_processors(service, 10)
    ended = [each for each, event in run_batch(service.client, processors, 4) if event.finish_reason is not None]
    assert len(ended) == 10 and {id(each) for each in ended} == {id(each) for each in processors}
    assert service.client.scheduler_state()["states"] == {}
    for number, each in enumerate(processors):
        assert each.result().outputs[0].token_ids == tokens_of(f"prompt {number}", SEEDED)


def test_no_more_than_the_window_are_sent_and_not_heard_of(
    service: TextService, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted, submit = [], service.client.submit
    monkeypatch.setattr(
        service.client, "submit", lambda request, sink: (submitted.append(request), submit(request, sink))
    )
    finished: set[str] = set()
    for processor, _ in run_batch(service.client, make_processors(service, 9), 2):
        finished.add(processor.request.request_id)
        assert len(submitted) - len(finished) <= 2
    assert len(submitted) == len(finished) == 9


def test_a_narrow_window_leaves_no_slot_empty(service: TextService) -> None:
    max_running = 0
    for _ in run_batch(
        service.client, make_processors(service, 9, SamplingParams(max_tokens=60, seed=1, ignore_eos=True)), 2
    ):
        max_running = max(max_running, service.client.load().running_requests)
    assert max_running > 4


def test_closing_it_aborts_what_is_open_and_submits_nothing_more(service: TextService) -> None:
    events = run_batch(service.client, make_processors(service, 9, SamplingParams(max_tokens=400, seed=1)), 3)
    next(events)
    events.close()
    wait_until(lambda: is_idle(service))
    assert service.client.scheduler_state()["finished_by_reason"] == {"stop": 0, "length": 0, "abort": 3, "error": 0}


def test_an_engine_that_dies_ends_every_request_with_its_error() -> None:
    full_plans = set()

    def hook(plan: StepPlan, stage: str) -> None:
        if len(plan.slots) >= 4:
            full_plans.add(plan.step_id)
        if len(full_plans) > 3:
            raise EngineDead("the engine failed in the test")

    service = fake_service(hook=hook)
    processors = make_processors(service, 12, SamplingParams(max_tokens=50, seed=1))
    for _ in run_batch(service.client, processors, 4):
        pass
    results = [each.result() for each in processors]
    assert all(isinstance(result.error, EngineDead) for result in results)
    has_output = [len(result.outputs[0].token_ids) > 0 for result in results]
    assert all(has_output[:4]) and has_output == sorted(has_output, reverse=True), "requests start in their order"
    service.client.close()


def test_an_engine_that_is_dead_already_raises(service: TextService) -> None:
    processors = make_processors(service, 3)
    service.client.close()
    with pytest.raises(EngineDead):
        list(run_batch(service.client, processors, 4))


def test_nothing_to_do_is_done_at_once(service: TextService) -> None:
    assert list(run_batch(service.client, [], 4)) == []
