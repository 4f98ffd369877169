"""Whole runs of further architectures of Chairlift's own: greedy tokens are those of transformers' `generate`.

The cases are those of test_option_combinations.py with the architecture fixed, in float64.
"""

from dataclasses import replace

import pytest

from support_models import HYBRIDS
from support_oracle import Case, bridged_cases
from support_oracle_run import check_case
from support_shares import FULL

COUNT = 60
KINDS = ("gemma2", "gemma4", "gemma4_dense", "gemma4_moe", "phi3", "phi3-partial", "smollm3", "granite", "olmo2",
         "olmo3", "ministral3", "glm4", "qwen3_moe", "mixtral", "olmoe", "gpt_oss", *HYBRIDS)  # fmt: skip


def is_small(case: Case) -> bool:
    is_inline = case.engine_mode == "inline" and case.backend == "torch"
    return is_inline and case.requests in range(2, 6) and case.crossed == (case.variant[1] is not None)


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(COUNT) if FULL else [None])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_generate(kind: str, seed: int | None) -> None:
    """A case with that seed; without one a small case of the kind, which crosses the window where there is one."""
    made = bridged_cases(kind, COUNT)
    case = next(case for case in made if is_small(case)) if seed is None else made[seed]
    check_case(replace(case, model_impl="native"))
