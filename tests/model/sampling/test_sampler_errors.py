"""Sampler: a row that fails affects no other row, whatever its parameters or processors do."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from chairlift.core.errors import NoAllowedToken, NonFiniteLogits, SamplingFailed, TokenOutOfRange
from chairlift.engine.step_plan import NewSequence
from chairlift.model.sampling import sampler as sampler_module
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest
from chairlift.model.sampling.sampler import Sampler
from support_sampling import VOCAB, head_of, logits_of, masks_of, params, sampler_with, sequence, token_by_model
from support_shares import for_each

PROMPT, OUTPUTS = (1, 2, 2, 9, 3), (4, 4, 4, 9, 6)


def sample_with_failing_row(
    failing: NewSequence, change: Callable[[torch.Tensor], None]
) -> tuple[list[int], dict[int, Exception]]:
    """Sample six rows, then again with a failing row 2.

    Asserts that the tokens of the other rows do not change.

    Returns:
        The tokens and the row errors of the second sample.
    """
    clean = [sequence(slot, params(seed=slot, top_p=0.9, repetition_penalty=1.1)) for slot in range(6)]
    logits = logits_of(6, 3)
    before = sampler_with(clean).sample(head_of(logits), np.arange(6)).tokens.tolist()
    change(logits)
    output = sampler_with([*clean[:2], failing, *clean[3:]]).sample(head_of(logits), np.arange(6))
    after = output.tokens.tolist()
    assert before[:2] + before[3:] == after[:2] + after[3:]
    assert all(0 <= token < VOCAB for token in after)
    return after, output.row_errors


def overwrite_logits(value: float, where: slice | int) -> Callable[[torch.Tensor], None]:
    def change(logits: torch.Tensor) -> None:
        logits[2, where] = value

    return change


@for_each(("value", "where"), [(torch.nan, 7), (torch.inf, 7), (torch.nan, slice(None)), (-torch.inf, slice(None))])
@for_each("chosen", [{"temperature": 0.0}, {}, {"top_k": 3}, {"logprobs": 2}, {"presence_penalty": 1.0}])
def test_logits_that_are_no_numbers_fail_their_own_row_only(
    value: float, where: slice | int, chosen: dict[str, object]
) -> None:
    _, row_errors = sample_with_failing_row(sequence(2, params(**chosen)), overwrite_logits(value, where))
    assert list(row_errors) == [2]
    assert isinstance(row_errors[2], NonFiniteLogits)


def test_a_few_logits_of_minus_infinity_are_bans_and_no_error() -> None:
    after, row_errors = sample_with_failing_row(sequence(2, params()), overwrite_logits(-torch.inf, slice(1, None)))
    assert not row_errors
    assert after[2] == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_bans_every_token_fails_alone_with_the_reason(temperature: float) -> None:
    bans = {token: -100.0 for token in range(VOCAB) if token not in EOS_AND_STOP}
    failing = sequence(2, params(temperature=temperature, logit_bias=bans, min_tokens=2, stop_token_ids=(8,)))
    _, row_errors = sample_with_failing_row(failing, lambda logits: None)
    assert list(row_errors) == [2]
    assert isinstance(row_errors[2], NoAllowedToken)
    assert "every token is banned: 37 by logit_bias, 3 by min_tokens 2" in row_errors[2].message


EOS_AND_STOP = (3, 5, 8)


def test_penalties_that_overflow_fail_alone() -> None:
    _, row_errors = sample_with_failing_row(
        sequence(2, params(repetition_penalty=5e-324), tuple(range(VOCAB))), lambda logits: None
    )
    assert list(row_errors) == [2]
    assert isinstance(row_errors[2], NoAllowedToken)


def test_an_exception_in_one_request_of_the_batched_way_is_confined_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sampler_module.uniforms

    def raising(seeds: np.ndarray, choices: np.ndarray, positions: np.ndarray) -> np.ndarray:
        if 666 in seeds:
            raise ZeroDivisionError("in the middle of a sample")
        return real(seeds, choices, positions)

    monkeypatch.setattr(sampler_module, "uniforms", raising)
    _, row_errors = sample_with_failing_row(sequence(2, params(seed=666)), lambda logits: None)
    assert list(row_errors) == [2]
    assert type(row_errors[2]) is SamplingFailed, "not an error of the request's parameters"
    assert row_errors[2].details["cause"] == "in the middle of a sample"
    assert isinstance(row_errors[2].__cause__, ZeroDivisionError)


def test_a_raising_row_costs_its_neighbours_neither_logprobs_nor_history(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = [sequence(slot, params(seed=slot, frequency_penalty=0.9, logprobs=2)) for slot in range(3)]
    undisturbed = sampler_with(sequences)
    undisturbed_outputs = [undisturbed.sample(head_of(logits_of(3, step)), np.arange(3)) for step in range(5)]
    real = sampler_module.process_logits
    disturbed = sampler_with(sequences)

    def raising(logits: torch.Tensor, row_processors: list[object], counts: np.ndarray) -> None:
        if any(row_processor is disturbed._state.row_processors[1] for row_processor in row_processors):
            raise RuntimeError("one bad row")
        real(logits, row_processors, counts)

    monkeypatch.setattr(sampler_module, "process_logits", raising)
    for step, undisturbed_output in enumerate(undisturbed_outputs):
        output = disturbed.sample(head_of(logits_of(3, step)), np.arange(3))
        assert list(output.row_errors) == [1]
        assert output.tokens[[0, 2]].tolist() == undisturbed_output.tokens[[0, 2]].tolist()
        assert (output.logprobs[0], output.logprobs[2]) == (
            undisturbed_output.logprobs[0],
            undisturbed_output.logprobs[2],
        )


def test_a_token_outside_the_vocabulary_in_logit_bias_fails_its_request_alone() -> None:
    _, row_errors = sample_with_failing_row(sequence(2, params(logit_bias={VOCAB: 1.0})), lambda logits: None)
    assert list(row_errors) == [2]
    assert isinstance(row_errors[2], TokenOutOfRange)


def test_the_slot_of_a_refused_request_serves_the_next_one() -> None:
    sampler = sampler_with([sequence(0, params(logit_bias={VOCAB: 1.0}))])
    assert sampler.sample(head_of(logits_of(1)), np.zeros(1, np.int64)).row_errors
    sampler.remove_slot(0)
    sampler.remove_slot(0)
    sampler.add_sequence(sequence(0, params(temperature=0.0)))
    assert not sampler.sample(head_of(logits_of(1)), np.zeros(1, np.int64)).row_errors


def test_a_mask_that_allows_nothing_fails_its_own_row_only() -> None:
    clean = [sequence(slot, params(seed=slot)) for slot in range(4)]
    logits = logits_of(4, 3)
    before = sampler_with(clean).sample(head_of(logits), np.arange(4)).tokens.tolist()
    output = sampler_with(clean).sample(head_of(logits), np.arange(4), masks_of(VOCAB, {1: set()}))
    assert list(output.row_errors) == [1] and isinstance(output.row_errors[1], NoAllowedToken)
    assert output.tokens[[0, 2, 3]].tolist() == [before[0], *before[2:]]


def doubled(**arguments: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda input_ids, scores: scores * arguments.get("by", 2.0)


def without_the_last(**arguments: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, input_ids[0, -1:], -torch.inf)

    return process


def raising(**arguments: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("an error of another library")

    return process


FACTORIES = {
    "doubled": doubled, "without_the_last": without_the_last, "raising": raising,
    "nan": lambda: lambda input_ids, scores: scores * torch.nan,
    "short": lambda: lambda input_ids, scores: scores[:, 1:],
    "nothing": lambda: lambda input_ids, scores: None,
    "banning": lambda: lambda input_ids, scores: scores - torch.inf,
}  # fmt: skip


def with_factories(sequences: list[NewSequence]) -> Sampler:
    sampler = Sampler(len(sequences), VOCAB, FACTORIES)
    for new in sequences:
        sampler.add_sequence(new)
    return sampler


def test_logits_processors_move_their_own_row_and_see_every_token_so_far() -> None:
    raw = logits_of(2, 5)
    chosen = params(seed=4, logits_processors={"doubled": {"by": 0.5}, "without_the_last": None})
    sampler = with_factories([sequence(0, chosen, PROMPT), sequence(1, params(seed=4), PROMPT)])
    outputs: tuple[int, ...] = ()
    for step in range(6):
        output = sampler.sample(head_of(raw), np.arange(2))
        moved = raw[0].numpy() * 0.5
        moved[(PROMPT + outputs)[-1]] = -np.inf
        plain = sequence(0, params(seed=4), PROMPT, outputs)
        assert not output.row_errors and output.tokens[0] == token_by_model(moved, plain), step
        outputs += (int(output.tokens[0]),)


@for_each(
    ("name", "message_part"),
    [
        ("raising", "the sampler raised ZeroDivisionError"), ("nan", "'nan' returned NaN"),
        ("short", "returned [1, 39], expected scores of shape [1, 40]"), ("nothing", "returned NoneType"),
        ("banning", "bans every token"), ("absent", "there is no logits processor 'absent'"),
    ],
)  # fmt: skip
@for_each("temperature", [0.0, 1.0])
def test_a_logits_processor_that_fails_fails_its_request_alone(
    name: str, message_part: str, temperature: float
) -> None:
    clean = [sequence(slot, params(seed=slot, top_p=0.9, repetition_penalty=1.1)) for slot in range(4)]
    logits = logits_of(4, 3)
    before = with_factories(clean).sample(head_of(logits), np.arange(4)).tokens.tolist()
    failing = sequence(2, params(temperature=temperature, logits_processors=[name]))
    output = with_factories([*clean[:2], failing, clean[3]]).sample(head_of(logits), np.arange(4))
    assert list(output.row_errors) == [2]
    assert isinstance(output.row_errors[2], SamplingFailed) and message_part in output.row_errors[2].message
    assert output.tokens[[0, 1, 3]].tolist() == [*before[:2], before[3]]


def test_arguments_that_a_factory_does_not_take_fail_their_request_alone() -> None:
    sampler = with_factories([sequence(0, params(logits_processors={"nan": {"no": 1}})), sequence(1, params())])
    output = sampler.sample(head_of(logits_of(2)), np.arange(2))
    assert list(output.row_errors) == [0] and "TypeError" in output.row_errors[0].message


def test_an_exception_of_the_head_is_no_row_error() -> None:
    def head(request: LogitsRequest) -> LMHeadOutput:
        raise MemoryError("no memory for the head")

    sampler = sampler_with([sequence(0, params(temperature=0.0))])
    with pytest.raises(MemoryError, match="the head"):
        sampler.sample(head, np.arange(1))
    assert sampler._state.num_outputs.tolist() == [0]


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no memory"), torch.AcceleratorError("lost"), RuntimeError("CUDA error: out of memory")],
    ids=["torch", "device", "driver"],
)
def test_an_error_of_the_device_is_no_row_error(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    sampler = sampler_with([sequence(slot, params(temperature=1.0)) for slot in range(2)])
    monkeypatch.setattr(sampler._sampling_ops, "sample_tokens", fails)
    with pytest.raises(type(error), match=str(error)):
        sampler.sample(head_of(logits_of(2)), np.arange(2))
    assert sampler._state.num_outputs.tolist()[:2] == [0, 0]


def test_a_row_that_is_no_number_is_that_first_and_then_without_a_token() -> None:
    raw = logits_of(4, seed=8)
    raw[1, 3] = torch.nan
    sampler = sampler_with([sequence(slot, params(temperature=0.7 if slot == 3 else 0.0)) for slot in range(4)])
    output = sampler.sample(head_of(raw), np.arange(4), masks_of(VOCAB, {1: set(), 2: set()}))
    assert isinstance(output.row_errors[1], NonFiniteLogits) and isinstance(output.row_errors[2], NoAllowedToken)
    assert sampler._state.num_outputs.tolist() == [1, 0, 0, 1]


def test_a_slot_with_an_error_fails_where_only_its_largest_logit_is_known() -> None:
    sampler = sampler_with(
        [sequence(0, params(temperature=0.0)), sequence(1, params(temperature=0.0, logit_bias={VOCAB: 1.0}))]
    )
    output = sampler.sample(head_of(logits_of(2)), np.arange(2))
    assert set(output.row_errors) == {1}
