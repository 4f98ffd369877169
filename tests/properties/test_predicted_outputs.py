"""Random requests with predictions: outputs are those without one, and usages count every draft once."""

import random
from dataclasses import replace

import pytest

from chairlift.core.request import GenerateRequest
from chairlift.engine.config import SpeculationConfig
from chairlift.engine.runner.fake_model import FakeConfig
from support_engine import EngineHarness, expected_outcome, make_request
from support_shares import FULL

FAKE = FakeConfig(vocab_size=200, num_blocks=40, block_size=4)
RUNS = 200 if FULL else 20
NUM_EDITS = 4


def edited(rng: random.Random, tokens: list[int]) -> tuple[int, ...]:
    """Return tokens of which some are replaced, left out or preceded by others, and with others around them."""
    result = list(tokens)
    for _ in range(rng.randrange(NUM_EDITS)):
        place = rng.randrange(len(result) + 1)
        result[place : place + rng.randrange(6)] = [rng.randrange(FAKE.vocab_size) for _ in range(rng.randrange(6))]
    before = [rng.randrange(FAKE.vocab_size) for _ in range(rng.choice([0, 0, 3]))]
    return (*before, *result, *result[: rng.randrange(9)])


def random_request(rng: random.Random, name: str) -> GenerateRequest:
    """Make a request that predicts one of its choices in part, and may be resumed."""
    prompt = [rng.randrange(FAKE.vocab_size) for _ in range(rng.randrange(1, 30))]
    request = make_request(
        name, prompt, rng.randrange(1, 60), n=rng.choice([1, 1, 3]), seed=rng.randrange(9),
        stop=(7,) if rng.random() < 0.3 else (),
    )  # fmt: skip
    outputs = [expected_outcome(request, FAKE, index)[0] for index in range(request.params.n)]
    resume = tuple(tuple(tokens[: rng.randrange(len(tokens))]) for tokens in outputs) if rng.random() < 0.2 else ()
    return replace(request, predicted_token_ids=edited(rng, rng.choice(outputs)), resume=resume)


@pytest.mark.parametrize("overlap", [False, True])
def test_predictions_change_no_output_and_are_counted(overlap: bool) -> None:
    accepted = rejected = preemptions = 0
    for seed in range(RUNS):
        rng = random.Random(seed)
        speculation = SpeculationConfig(method="prediction", num_speculative_tokens=rng.choice([1, 4, 9]))
        harness = EngineHarness(
            FAKE, overlap=overlap, max_batch_tokens=rng.choice([16, 64]), speculation=speculation,
            max_running_requests=rng.choice([3, 16]),
        )  # fmt: skip
        harness.audit.may_wait_for_samples = True
        for number in range(6):
            harness.submit(random_request(rng, f"r{number}"))
            harness.step(rng.randrange(4))
        harness.drain()
        harness.check_outputs(no_faults=True)
        harness.close()
        usages = [output.usage for output in harness.finals.values() if output.usage is not None]
        counters = harness.scheduler.counters
        confirmed = sum(usage.accepted_prediction_tokens for usage in usages)
        wrong = sum(usage.rejected_prediction_tokens for usage in usages)
        assert len(usages) == 6
        assert (confirmed, confirmed + wrong) == (counters.confirmed_draft_tokens, counters.draft_tokens)
        accepted, rejected, preemptions = accepted + confirmed, rejected + wrong, preemptions + counters.preemptions
    assert accepted > rejected > 0 and preemptions > 0
