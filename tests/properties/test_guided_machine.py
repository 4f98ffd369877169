"""Requests with grammars among others, with preemption, aborts, failures and overlap: each choice samples as if alone.

Masks are computed ahead of their step, and rows with a grammar are committed like any other row. A stale mask, a token
that advances a grammar twice, or a grammar that two threads change would show here.
"""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.engine_output import EngineOutput
from chairlift.core.request import GenerateRequest
from chairlift.core.structured_output import ReasoningPrefix
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig, masked_token, next_token
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.structured.grammar_matcher import GrammarMatcher
from support_engine import make_request, submit
from support_grammars import EOS, VOCAB_SIZE, grammar_of
from support_shares import FULL

NUM_SEEDS = 400 if FULL else 20
REGEXES = ("[ab]{3}c", "[a-m]*x", "([a-m]*x|[n-z]+y|[^q]{3,20}){2,9}", "a?b?c?d", "(yes|no)( (yes|no)){0,3}", ".{0,60}")
SCHEMA = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip


@dataclass
class RequestRun:
    """A request and the tokens of each choice."""

    request: GenerateRequest
    grammar: GrammarMatcher | None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    was_disturbed: bool = False
    has_ended: bool = False

    def receive(self, output: EngineOutput) -> None:
        assert not self.has_ended, "an output after the final one"
        self.tokens.setdefault(output.choice_index, []).extend(output.token_ids)
        self.has_ended = output.is_final
        if output.error is not None:
            assert "a step that fails" in output.error.message, output.error
            self.was_disturbed = True


def expected_choice(run: RequestRun, fake: FakeConfig, choice: int) -> list[int]:
    """Return the tokens of a choice by the definitions: no batch, no cache, a new mask for each token."""
    request, grammar = run.request, None if run.grammar is None else run.grammar.copy()
    context, sampled = list(request.prompt_token_ids), []
    while len(sampled) < (request.params.max_tokens or 0):
        token: int | None = next_token(context, request.params, fake, choice)
        if grammar is not None:
            bits = np.zeros(grammar.width, np.int32)
            grammar.fill(bits)
            token = masked_token(token, bits, fake.vocab_size)
        assert token is not None
        sampled.append(token)
        context.append(token)
        if token in request.all_stop_token_ids:
            break
        if grammar is not None:
            grammar.advance(token)
            if grammar.is_terminated:
                break
    return sampled


@pytest.fixture(scope="module")
def grammars() -> list[GrammarMatcher]:
    reasoning = [
        grammar_of(
            regex="[ab]{2,4}", reasoning_prefix=ReasoningPrefix(starts=("t",), ends=("e", "of"), is_open=is_open)
        )
        for is_open in (False, True)
    ]
    return [*(grammar_of(regex=regex) for regex in REGEXES), grammar_of(json_schema=SCHEMA), *reasoning]


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_each_choice_samples_what_it_samples_alone(seed: int, grammars: list[GrammarMatcher]) -> None:
    rng = random.Random(seed)
    fake = FakeConfig(
        vocab_size=VOCAB_SIZE, num_blocks=rng.choice([30, 64, 200]), block_size=4, max_model_len=110,
        windows=rng.choice([(None,), (None,), (None, 8), (12,)]),
        busy_cpus=tuple(sorted(usable_cpus())) if seed % 3 else (),
        has_state=seed % 4 == 0, num_state_checkpoints=seed // 4 % 3 * 4,
    )  # fmt: skip
    failures = rng.choice([0, 0, 6])

    def hook(plan: StepPlan, stage: str) -> None:
        nonlocal failures
        if failures and rng.random() < 0.05:
            failures -= 1
            raise ValueError("a step that fails")

    config = SchedulerConfig(
        max_running_requests=rng.choice([4, 8, 16]), max_batch_tokens=rng.choice([16, 40, 128]),
        overlap=rng.random() < 0.5,
    )  # fmt: skip
    loop = EngineLoop(FakeRunner(fake, hook=hook), config, enable_prefix_caching=rng.random() < 0.7)
    loop.start()
    runs: dict[str, RequestRun] = {}

    def receive(outputs: list[EngineOutput]) -> None:
        for output in outputs:
            runs[output.request_id].receive(output)

    try:
        num_to_come = rng.randint(3, 20)
        while num_to_come or not loop.is_idle:
            if num_to_come and rng.random() < 0.4:
                num_to_come -= 1
                request = make_request(
                    f"r{num_to_come}", rng.choice([list(range(1, 13)), [rng.randrange(256) for _ in range(9)]]),
                    rng.randint(1, 60), n=rng.choice([1, 1, 3]), seed=rng.randrange(99), eos_token_ids=(EOS,),
                    stop=[rng.randrange(256)] if rng.random() < 0.2 else [],
                )  # fmt: skip
                run = runs[request.request_id] = RequestRun(request, rng.choice([None, *grammars]))
                copies = [run.grammar.copy() for _ in range(request.params.num_choices)] if run.grammar else []
                receive(submit(loop, request, copies))
            if runs and rng.random() < 0.03:
                name = rng.choice(list(runs))
                runs[name].was_disturbed = True
                ended = loop.abort(name)
                receive([] if ended is None else [ended])
            receive(loop.step())
        assert loop.check_integrity() == []
    finally:
        loop.stop()
    for run in runs.values():
        assert run.has_ended
        for choice in range(run.request.params.num_choices):
            expected, tokens = expected_choice(run, fake, choice), run.tokens.get(choice, [])
            assert tokens == (expected[: len(tokens)] if run.was_disturbed else expected), (seed, run.request)
