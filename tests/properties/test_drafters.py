"""The drafters of each method: random sequences, random engines, and outputs that they guess right."""

import gc
import random
from collections import Counter
from dataclasses import replace

import pytest

from chairlift.core.engine_output import EngineOutput
from chairlift.core.request import GenerateRequest
from chairlift.engine.config import SchedulerConfig, SpeculationConfig
from chairlift.engine.drafters.base import LearnsFromOutputs
from chairlift.engine.drafters.prompt_lookup import PromptLookupDrafter
from chairlift.engine.drafters.registry import METHODS, make_drafters
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig, unverified_token
from chairlift.engine.structured.grammar_matcher import GrammarMatcher
from support_drafters import make_sequence
from support_engine import EngineHarness, make_request, submit
from support_grammars import EOS, VOCAB_SIZE, grammar_of
from support_requests import run_random_engine
from support_shares import FULL, for_each

DRAFTING = sorted(set(METHODS) - {"none", "prediction", "draft_model"})
"""Methods that need no prediction of a request, and no second model."""
SCHEDULES = 40 if FULL else 3
"""Random engines of a method that had drafts; in most of them no tokens occur twice."""
MAX_SCHEDULES = 600


pytestmark = pytest.mark.usefixtures("without_warnings")


@for_each("method", DRAFTING)
def test_proposals_have_ids_of_the_vocabulary_and_at_most_the_limit(method: str) -> None:
    rng = random.Random(method)
    num_proposed = 0
    for _ in range(30):
        least = rng.randrange(1, 4)
        config = SpeculationConfig(
            method=method, prompt_lookup_min=least, prompt_lookup_max=least + rng.randrange(4),
            suffix_max_bytes=rng.choice([1, 2**14, 2**20]),
        )  # fmt: skip
        drafters, vocab_size = make_drafters(config), rng.choice([1, 2, 8, 30, 1000])
        for _ in range(6):
            prompt = [rng.randrange(vocab_size) for _ in range(rng.choice([1, 5, 40, 300]))]
            sequence = make_sequence(prompt, tenant=rng.choice(["", "other"]))
            for _ in range(rng.choice([3, 40])):
                for drafter in drafters:
                    limit = rng.choice([1, 2, 16])
                    proposal = list(drafter.propose(sequence, limit))
                    assert len(proposal) <= limit and all(0 <= token < vocab_size for token in proposal)
                    num_proposed += len(proposal)
                sequence.token_ids += [rng.randrange(vocab_size) for _ in range(rng.choice([1, 1, 3]))]
            for drafter in drafters:
                if isinstance(drafter, LearnsFromOutputs):
                    drafter.learn(sequence)
    assert num_proposed > 1000


@pytest.mark.share(1)
@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("method", DRAFTING)
def test_random_schedules_with_each_method_keep_every_promise(method: str, has_state: bool) -> None:
    totals: Counter[str] = Counter()
    for number in range(MAX_SCHEDULES):
        config = SpeculationConfig(
            method=method, num_speculative_tokens=1 + number % 9, prompt_lookup_min=1, prompt_lookup_max=1 + number % 3
        )
        seed = 9_000_000 + 1000 * DRAFTING.index(method) + number
        counters = run_random_engine(seed, 60, has_state=has_state, speculation=config).scheduler.counters
        totals.update(
            engines=counters.draft_tokens > 0, rejected=counters.draft_tokens - counters.confirmed_draft_tokens
        )
        if FULL:
            totals.update(confirmed=counters.confirmed_draft_tokens, preemptions=counters.preemptions)
        if totals["engines"] >= SCHEDULES:
            break
    assert totals["engines"] == SCHEDULES
    assert not [name for name, count in totals.items() if not count], "something did not happen in any engine"


REPEATING = FakeConfig(vocab_size=16, max_model_len=512, num_blocks=256, verify=False)
"""A fake model whose outputs repeat themselves after 16 tokens."""


@for_each("overlap", [False, True])
@for_each("method", DRAFTING)
def test_outputs_that_repeat_themselves_need_few_steps(method: str, overlap: bool) -> None:
    speculation = SpeculationConfig(method=method, num_speculative_tokens=8)
    loop = EngineLoop(FakeRunner(REPEATING), SchedulerConfig(overlap=overlap, speculation=speculation))
    loop.start()
    request = make_request("a", 5, 200, n=2)
    outputs, num_steps = submit(loop, request), 0
    while not loop.is_idle:
        outputs += loop.step()
        num_steps += 1
    loop.stop()
    prompt, params = request.prompt_token_ids, request.params
    expected = [unverified_token(prompt, params, at, REPEATING) for at in range(5, 205)]
    for index in range(2):
        tokens = [token for output in outputs if output.choice_index == index for token in output.token_ids]
        assert tokens == expected
    counters = loop.scheduler.counters
    assert num_steps < 80 and counters.confirmed_draft_tokens > 280 and counters.failed_steps == 0
    assert counters.draft_tokens - counters.confirmed_draft_tokens < 60


def test_an_index_lives_as_long_as_its_request() -> None:
    loop = EngineLoop(FakeRunner(REPEATING), SchedulerConfig(speculation=SpeculationConfig(method="ngram")))
    loop.start()
    planner = loop.scheduler._draft_planner
    assert planner is not None
    *_, drafter = planner._drafters
    assert isinstance(drafter, PromptLookupDrafter)
    submit(loop, make_request("a", 5, 200))
    for _ in range(9):
        loop.step()
    assert len(drafter._indexes) == 1
    while not loop.is_idle:
        loop.step()
    gc.collect()
    assert not len(drafter._indexes)
    loop.stop()


def test_a_request_learns_from_an_equal_one_of_its_tenant_only() -> None:
    harness = EngineHarness(FakeConfig(vocab_size=5000, max_model_len=512))
    harness.use_method(SpeculationConfig(method="suffix", num_speculative_tokens=8, prompt_lookup_min=3))
    confirmed, counters = [], harness.scheduler.counters
    for number, tenant in enumerate(("", "other", "", "other")):
        before = counters.draft_tokens, counters.confirmed_draft_tokens
        harness.submit(make_request(str(number), 9, 60, tenant=tenant))
        harness.drain()
        drafts, confirmed = counters.draft_tokens - before[0], counters.confirmed_draft_tokens - before[1]
        if number < 2:
            assert drafts == 0, "an output of another tenant was proposed"
        else:
            assert confirmed == drafts > 50
    harness.close()


def run_with_grammars(
    request: GenerateRequest, grammars: list[GrammarMatcher], method: str
) -> tuple[list[EngineOutput], int, int]:
    """Run one request; returns its outputs, the number of steps, and of confirmed drafts."""
    harness = EngineHarness(FakeConfig(vocab_size=VOCAB_SIZE, max_model_len=512))
    harness.use_method(SpeculationConfig(method=method))
    outputs, num_steps = submit(harness.loop, request, grammars), 0
    while not harness.loop.is_idle:
        outputs += harness.loop.step()
        num_steps += 1
    assert harness.loop.check_integrity() == []
    harness.close()
    return outputs, num_steps, harness.scheduler.counters.confirmed_draft_tokens


def test_tokens_that_a_grammar_forces_need_no_steps_of_their_own() -> None:
    pattern = '\\{"name": "[a-z]{3}", "description": "[a-z]{3}", "is_available": (true|false)\\}'
    request = replace(make_request("a", 5, 200, n=2), eos_token_ids=(EOS,))
    runs = {
        method: run_with_grammars(request, [grammar_of(regex=pattern) for _ in range(2)], method)
        for method in ("none", "auto")
    }
    texts = [
        [bytes(token for output in outputs if output.choice_index == index for token in output.token_ids)
         for index in range(2)]
        for outputs, _, _ in runs.values()
    ]  # fmt: skip
    assert texts[0] == texts[1] and b'", "description": "' in texts[0][0]
    (_, plain_steps, _), (_, num_steps, num_confirmed) = runs.values()
    assert num_steps < plain_steps / 2 and num_confirmed > 60
