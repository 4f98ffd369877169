"""Requests with grammars among others, through preemption, aborts, failed steps and overlap: each draws as if alone.

A mask is begun ahead of the step that wants it, and a row with a grammar is taken in like any other, so this is where a
mask of yesterday, a token that is taken twice, or a grammar that two threads touch would show.
"""

import os
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.request import EngineOutput, GenerateRequest
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeConfig, FakeRunner, masked_token, next_token
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.structured.grammar import Grammar
from support_engine import ask
from support_structure import EOS, VOCAB_SIZE, grammar_of

LIVES = 400 if os.environ.get("CHAIRLIFT_FULL") == "1" else 40
REGEXES = ("[ab]{3}c", "[a-m]*x", "([a-m]*x|[n-z]+y|[^q]{3,20}){2,9}", "a?b?c?d", "(yes|no)( (yes|no)){0,3}", ".{0,60}")
SCHEMA = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip


@dataclass
class Rider:
    """What was asked, and what came of each choice."""

    request: GenerateRequest
    grammar: Grammar | None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    was_disturbed: bool = False
    has_ended: bool = False

    def hear(self, output: EngineOutput) -> None:
        assert not self.has_ended, "a word behind the last one"
        self.tokens.setdefault(output.choice_index, []).extend(output.token_ids)
        self.has_ended = output.is_final
        if output.error is not None:
            assert "a step that fails" in output.error.message, output.error
            self.was_disturbed = True


def alone(rider: Rider, fake: FakeConfig, choice: int) -> list[int]:
    """Draw a choice by the definitions: no batch, no cache, a new mask for each token."""
    request, grammar = rider.request, None if rider.grammar is None else rider.grammar.copy()
    context, drawn = list(request.prompt_token_ids), []
    while len(drawn) < (request.params.max_tokens or 0):
        token: int | None = next_token(context, request.params, fake, choice)
        if grammar is not None:
            bits = np.zeros(grammar.width, np.int32)
            grammar.fill(bits)
            token = masked_token(token, bits, fake.vocab_size)
        assert token is not None
        drawn.append(token)
        context.append(token)
        if token in request.all_stop_token_ids:
            break
        if grammar is not None:
            grammar.advance(token)
            if grammar.is_terminated:
                break
    return drawn


@pytest.fixture(scope="module")
def grammars() -> list[Grammar]:
    return [*(grammar_of(regex=regex) for regex in REGEXES), grammar_of(json_schema=SCHEMA)]


@pytest.mark.parametrize("seed", range(LIVES))
def test_each_draws_what_it_draws_alone(seed: int, grammars: list[Grammar]) -> None:
    dice = random.Random(seed)
    fake = FakeConfig(
        vocab_size=VOCAB_SIZE, num_blocks=dice.choice([30, 64, 200]), block_size=4, max_model_len=110,
        windows=dice.choice([(None,), (None,), (None, 8), (12,)]),
        cpus=tuple(sorted(usable_cpus())) if seed % 3 else (),
    )  # fmt: skip
    failures = dice.choice([0, 0, 6])

    def hook(plan: StepPlan, stage: str) -> None:
        nonlocal failures
        if failures and dice.random() < 0.05:
            failures -= 1
            raise ValueError("a step that fails")

    config = SchedulerConfig(
        max_running_requests=dice.choice([4, 8, 16]), max_batch_tokens=dice.choice([16, 40, 128]),
        overlap=dice.random() < 0.5,
    )  # fmt: skip
    loop = EngineLoop(FakeRunner(fake, hook=hook), config, enable_prefix_caching=dice.random() < 0.7)
    loop.start()
    riders: dict[str, Rider] = {}

    def hear(outputs: list[EngineOutput]) -> None:
        for output in outputs:
            riders[output.request_id].hear(output)

    try:
        coming = dice.randint(3, 20)
        while coming or not loop.is_idle:
            if coming and dice.random() < 0.4:
                coming -= 1
                request = ask(
                    f"r{coming}", dice.choice([list(range(1, 13)), [dice.randrange(256) for _ in range(9)]]),
                    dice.randint(1, 60), n=dice.choice([1, 1, 3]), seed=dice.randrange(99), eos_token_ids=(EOS,),
                    stop=[dice.randrange(256)] if dice.random() < 0.2 else [],
                )  # fmt: skip
                rider = riders[request.request_id] = Rider(request, dice.choice([None, *grammars]))
                copies = [rider.grammar.copy() for _ in range(request.params.num_choices)] if rider.grammar else []
                hear(loop.submit(request, copies))
            if riders and dice.random() < 0.03:
                name = dice.choice(list(riders))
                riders[name].was_disturbed = True
                ended = loop.abort(name)
                hear([] if ended is None else [ended])
            hear(loop.step())
        assert loop.check_integrity() == []
    finally:
        loop.stop()
    for rider in riders.values():
        assert rider.has_ended
        for choice in range(rider.request.params.num_choices):
            expected, found = alone(rider, fake, choice), rider.tokens.get(choice, [])
            assert found == (expected[: len(found)] if rider.was_disturbed else expected), (seed, rider.request)
