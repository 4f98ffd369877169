"""EngineModel: the time of its steps, prefix hits, the times of SimplifiedEngineModel, and requests taken back."""

from random import Random

import pytest

from chairlift.bench.fleet_simulation.real_engine_model import EngineModel
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import ServingModel, SimRequest
from chairlift.bench.fleet_simulation.simplified_engine_model import SimplifiedEngineModel
from chairlift.bench.simulation.sim_step_model import SMALL_CPU
from chairlift.engine.config import SchedulerConfig

CONFIG = SchedulerConfig(max_running_requests=4)


def run(model: ServingModel, requests: list[SimRequest]) -> dict[int, float]:
    """Serve requests to the end; return the time at which each ended."""
    ends, waiting = {}, list(requests)
    while waiting or model.next_event_at < float("inf"):
        now = model.next_event_at
        if waiting and waiting[0].arrived_at <= now:
            model.submit(waiting[0], waiting.pop(0).arrived_at)
        else:
            ends |= {each.index: now for each in model.advance().finished}
    return ends


def test_a_request_takes_the_time_of_its_steps_from_its_arrival_on() -> None:
    model, request = EngineModel(SMALL_CPU, CONFIG, 100, 16), SimRequest(0, 10.0, 400, 3)
    end = run(model, [request])[0]
    assert end == pytest.approx(10 + 400 * SMALL_CPU.prefill_token + 3 * SMALL_CPU.step, rel=0.2)
    assert model.busy_seconds == pytest.approx(end - 10) and model.output_tokens == len(request.output_token_ids) == 3


def test_the_second_request_of_a_prompt_hits_the_cache() -> None:
    model = EngineModel(SMALL_CPU, CONFIG, 100, 16)
    first, second = (SimRequest(n, float(n), 400, 2, prompt_token_ids=range(400)) for n in range(2))
    run(model, [first, second])
    assert (first.cached_tokens, second.cached_tokens) == (0, 384)


def test_it_serves_like_the_batch_model() -> None:
    outcomes = []
    for kind in (EngineModel, SimplifiedEngineModel):
        rng = Random("both models")
        requests = [SimRequest(n, n * 0.2, rng.randint(1, 300), rng.randint(1, 30)) for n in range(30)]
        options = {"enable_prefix_caching": False} if kind is EngineModel else {}
        model = kind(SMALL_CPU, CONFIG, 200, 16, **options)
        ends = run(model, requests)
        outcomes.append([
            value for each in requests for value in (each.first_token_at, each.longest_gap_seconds, ends[each.index])
        ] + [model.busy_seconds])  # fmt: skip
    assert outcomes[0] == pytest.approx(outcomes[1])


def test_the_part_of_a_step_in_progress_counts_as_busy() -> None:
    model = EngineModel(SMALL_CPU, CONFIG, 100, 16)
    model.submit(SimRequest(0, 1.0, 400, 2), 1.0)
    model.advance()
    model.update_progress(1.1)
    assert model.busy_seconds == pytest.approx(0.1) and model.kv_usage_ratio == pytest.approx(25 / 100)


@pytest.mark.parametrize("kind", [EngineModel, SimplifiedEngineModel])
def test_a_request_that_waits_can_be_taken_back_and_one_that_runs_stays(kind: type[EngineModel]) -> None:
    model, requests = kind(SMALL_CPU, CONFIG, 100, 16), [SimRequest(n, 0.0, 50, 20) for n in range(7)]
    for request in requests:
        model.submit(request, 0.0)
    while requests[3].first_token_at is None:
        model.advance()
    waiting = [each for each in requests if each.first_token_at is None]
    assert len(waiting) == 3 and model.withdraw(waiting[1])
    run(model, [])
    assert [each.index for each in requests if each.first_token_at is None] == [waiting[1].index]
    assert model.output_tokens == 6 * 20 and model.kv_usage_ratio == 0
    model.submit(waiting[1], 500.0)
    run(model, [])
    assert (waiting[1].first_token_at or 0) > 500


def test_a_request_whose_first_token_comes_with_this_step_stays() -> None:
    for kind in (EngineModel, SimplifiedEngineModel):
        model, request = kind(SMALL_CPU, CONFIG, 100, 16), SimRequest(0, 0.0, 50, 2)
        model.submit(request, 0.0)
        model.advance()
        assert not model.withdraw(request)
        run(model, [])
        assert request.first_token_at is not None
