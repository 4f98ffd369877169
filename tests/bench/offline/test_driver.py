"""drive_workload: open loop, full-length outputs, token times from the engine's callback, no request left open."""

import threading
import time
from collections.abc import Iterator

import pytest

from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.errors import EngineDead, InvalidRequest
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.step_stats import StepStats
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from support_services import AsciiTokenizer, Gate, fake_service, is_idle, wait_until


def work(*items: WorkloadRequest) -> Workload:
    return Workload(name="test", seed=0, items=items)


def item(number: int = 0, at: float = 0.0, output: int = 6, **given: object) -> WorkloadRequest:
    prompt = tuple((number * 7 + place) % 128 for place in range(5 + number))
    return WorkloadRequest(at=at, prompt_token_ids=prompt, output_tokens=output, **given)


@pytest.fixture
def service() -> Iterator[TextService]:
    made = fake_service()
    yield made
    made.client.close()


def test_every_request_runs_to_its_full_length_with_token_times(service: TextService) -> None:
    progress: list[tuple[int, bool]] = []
    result = drive_workload(
        service, work(*(item(number, output=3 + number) for number in range(9))), lambda *n: progress.append(n)
    )
    assert [record.output_tokens for record in result.records] == [3 + number for number in range(9)]
    for record in result.records:
        assert record.is_complete and record.ended == record.stamps[-1]
        assert record.stamps == sorted(record.stamps) and record.stamps[0] > 0 and record.ended <= result.seconds
    assert sum(tokens for tokens, _ in progress) == sum(range(3, 12))
    assert sum(ended for _, ended in progress) == 9
    assert is_idle(service)


def test_the_end_of_a_sequence_is_ignored() -> None:
    service = fake_service(defaults=ModelDefaults(eos_token_ids=tuple(range(128))))
    (record,) = drive_workload(service, work(item(output=20))).records
    assert record.output_tokens == 20
    service.client.close()


def test_a_request_is_sent_when_it_arrives_though_others_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, sent = Gate(), []
    service = fake_service(hook=gate)
    submit = service.client.submit
    monkeypatch.setattr(service.client, "submit", lambda request, sink: (sent.append(request), submit(request, sink)))
    run = threading.Thread(target=drive_workload, args=(service, work(item(0), item(1, at=0.05), item(2, at=0.1))))
    run.start()
    assert gate.reached.wait(20)  # the first step hangs
    wait_until(lambda: len(sent) == 3)
    assert service.client.fatal_error is None and run.is_alive()
    gate.opened.set()
    run.join(20)
    assert not run.is_alive()
    service.client.close()


def test_nothing_is_sent_before_it_arrives_and_stamps_count_from_the_start(service: TextService) -> None:
    result = drive_workload(service, work(item(0), item(1, at=0.1), item(2, at=0.2)))
    assert all(record.item.at < record.stamps[0] for record in result.records)
    assert result.seconds > 0.2


def test_no_more_are_sent_than_the_waiting_queue_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    service, sent = fake_service(max_queue_size=2, max_running_requests=1), []
    submit = service.client.submit
    monkeypatch.setattr(service.client, "submit", lambda request, sink: (sent.append(request), submit(request, sink)))
    result = drive_workload(service, work(*(item(number) for number in range(8))))
    assert all(record.is_complete for record in result.records) and len(sent) == 8
    service.client.close()


def test_a_short_waiting_queue_does_not_leave_slots_unused() -> None:
    """Steps are slow, so that all requests can start before the first one finishes."""
    service = fake_service(max_queue_size=2, max_running_requests=8, hook=lambda plan, stage: time.sleep(0.002))
    steps: list[StepStats] = []
    service.client.watch_steps(steps.append)
    result = drive_workload(service, work(*(item(number, output=60) for number in range(8))))
    assert all(record.is_complete for record in result.records)
    assert max(each.running for each in steps) == 8
    service.client.close()


def test_equal_prompts_find_each_others_blocks_and_tenants_do_not(service: TextService) -> None:
    alike = WorkloadRequest(at=0.0, prompt_token_ids=tuple(range(40)), output_tokens=2)
    other = WorkloadRequest(at=0.0, prompt_token_ids=tuple(range(40)), output_tokens=2, tenant="b")
    first, second, third = drive_workload(service, work(alike, alike, other)).records
    assert (first.cached_tokens, third.cached_tokens) == (0, 0) and second.cached_tokens >= 32


def test_a_request_that_can_never_be_served_is_named_before_anything_is_sent(service: TextService) -> None:
    with pytest.raises(InvalidRequest, match=r"request 1 of the workload: prompt has 6 tokens and max_tokens is 600"):
        drive_workload(service, work(item(0), item(1, output=600)))
    assert service.client.load().steps == 0


def test_what_fails_is_counted_with_its_reason(service: TextService) -> None:
    slow = item(0, output=400, timeout=0.001)
    lost, whole = drive_workload(service, work(slow, item(1))).records
    assert lost.error == "timeout" and not lost.is_complete and lost.ended is not None
    assert whole.is_complete


def test_text_that_cannot_be_made_fails_its_request_alone() -> None:
    service = fake_service(tokenizer=AsciiTokenizer(broken=63))
    records = drive_workload(service, work(*(item(number, output=40) for number in range(6)))).records
    assert {record.error for record in records} == {"", "detokenize_failed"}
    assert all(record.is_complete == (not record.error) for record in records)
    assert is_idle(service)
    service.client.close()


def test_an_engine_that_dies_fails_every_open_request() -> None:
    def hook(plan: StepPlan, stage: str) -> None:
        if plan.step_id >= 4:
            raise EngineDead("the engine died of the test")

    service = fake_service(hook=hook)
    result = drive_workload(service, work(item(0), item(1, at=0.2)))
    assert [record.error for record in result.records] == ["engine_dead", "engine_dead"]
    service.client.close()


def test_whatever_interrupts_it_aborts_what_is_open(service: TextService) -> None:
    def interrupt(tokens: int, ended: bool) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive_workload(service, work(*(item(number, output=400) for number in range(3))), interrupt)
    wait_until(lambda: is_idle(service))
    assert service.client.scheduler_state()["finished_by_reason"]["abort"] == 3
