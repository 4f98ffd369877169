"""Whole runs of models that transformers' modules compute: greedy tokens are those of transformers' `generate`.

The cases are those of test_option_combinations.py with the architecture fixed. Native architectures run here through
transformers' modules, too; the reference is the same as that of their native cases.
"""

import pytest

from support_bridged_models import BRIDGED, WINDOW
from support_oracle import Case, bridged_cases, oracle, own_prompt
from support_oracle_run import check_case
from support_shares import FULL

COUNT = 60
NATIVE = ("llama", "qwen3", "gemma3", "mistral")
KINDS = (*BRIDGED, *NATIVE)
LARGEST = 5
"""Most requests of the case of `make test`."""

VARIETY = 12
"""Different tokens in five continuations, from which errors of position become visible."""


def is_small(case: Case) -> bool:
    is_inline = case.engine_mode == "inline" and case.backend == "torch"
    return is_inline and case.requests in range(2, LARGEST + 1) and case.crossed == (case.variant[1] is not None)


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(COUNT) if FULL else [None])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_generate(kind: str, seed: int | None) -> None:
    """A case with that seed; without one a small case of the kind, which crosses the window where there is one."""
    made = bridged_cases(kind, COUNT)
    check_case(next(case for case in made if is_small(case)) if seed is None else made[seed])


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", [kind for kind, spec in BRIDGED.items() if FULL or spec.scale > 0.3])
def test_the_reference_does_not_repeat_itself(kind: str) -> None:
    reference = oracle(kind, WINDOW if BRIDGED[kind].window else None)
    prompts = [own_prompt(number, length) for number, length in enumerate((1, 5, 17, 33, 50))]
    made = [reference.continuation(prompt, ignore_eos=True) for prompt in prompts]
    assert len(set().union(*made)) >= VARIETY
