"""Sampler: every parameter against the numpy model, exactly and by chi-square; rows fail and sample independently."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from chairlift.core.errors import NoAllowedToken, NonFiniteLogits, SamplingFailed, TokenOutOfRange
from chairlift.core.sampling import SamplingParams
from chairlift.engine.step_plan import NewSequence
from chairlift.model.sampling import sampler as sampler_module
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest, compute_lm_head_output
from chairlift.model.sampling.sampler import Sampler
from chairlift.model.sampling.sampling_ops import TorchSamplingOps
from support_sampling import drawn_by_model, head_of, masks_of, params, probabilities, sequence, shaped_logits
from support_statistics import chi_square_p

VOCAB = 40
DRAWS = 20_000
CHOSEN = {
    "neutral": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 6},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.08},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": -0.8},
    "logit_bias": {"logit_bias": {4: 3.0, 9: -2.0, 11: -100.0}},
    "min_tokens": {"min_tokens": 50, "stop_token_ids": (7,)},
    "typical_p": {"typical_p": 0.4},
    "epsilon_cutoff": {"epsilon_cutoff": 0.03},
    "eta_cutoff": {"eta_cutoff": 0.2},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": ((13,), (4, 9, 6, 20), (5, 6, 1))},
    "allowed_token_ids": {"allowed_token_ids": (2, 3, 5, 7, 11, 13, 17, 19, 23)},
    "all together": {
        "temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 0.8,
        "presence_penalty": -0.5, "frequency_penalty": 0.3, "logit_bias": {4: 1.0, 11: -100.0}, "min_tokens": 50,
    },
}  # fmt: skip
PROMPT, OUTPUTS = (1, 2, 2, 9, 3), (4, 4, 4, 9, 6)


def logits_of(rows: int, seed: int = 0, vocab_size: int = VOCAB, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    made = torch.randn(rows, vocab_size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2
    return made.to(dtype)


def sampler_with(sequences: list[NewSequence], vocab_size: int = VOCAB) -> Sampler:
    sampler = Sampler(len(sequences), vocab_size)
    for new in sequences:
        sampler.add_sequence(new)
    return sampler


def random_params(rng: np.random.Generator) -> SamplingParams:
    def maybe(value: object, neutral: object) -> object:
        return value if rng.random() < 0.4 else neutral

    return params(
        seed=int(rng.integers(-(2**62), 2**62)), temperature=maybe(0.0, rng.uniform(0.3, 2)),
        top_k=maybe(int(rng.integers(1, 60)), 0), top_p=maybe(rng.uniform(0.05, 1), 1.0),
        min_p=maybe(rng.uniform(0, 0.3), 0.0), repetition_penalty=maybe(rng.uniform(0.5, 2), 1.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0), frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        logit_bias=maybe({int(token): float(rng.choice([-100, -1.5, 2])) for token in rng.integers(0, VOCAB, 4)}, {}),
        typical_p=maybe(rng.uniform(0.2, 1), 1.0), epsilon_cutoff=maybe(rng.uniform(0, 0.1), 0.0),
        eta_cutoff=maybe(rng.uniform(0, 0.3), 0.0), no_repeat_ngram_size=maybe(int(rng.integers(1, 4)), 0),
        bad_words_ids=maybe(tuple(tuple(word) for word in rng.integers(0, VOCAB, (6, 2)).tolist()), ()),
        allowed_token_ids=maybe(tuple(range(int(rng.integers(10)), VOCAB)), ()),
        min_tokens=maybe(int(rng.integers(0, 6)), 0), stop_token_ids=maybe((8,), ()), logprobs=maybe(3, None),
    )  # fmt: skip


def random_sequences(count: int, seed: int) -> list[NewSequence]:
    rng = np.random.default_rng(seed)
    made = []
    for slot in range(count):
        prompt, outputs = (tuple(rng.integers(0, VOCAB, size).tolist()) for size in rng.integers(1, 12, 2))
        made.append(sequence(slot, random_params(rng), prompt, outputs if rng.random() < 0.7 else ()))
    return made


@pytest.mark.parametrize("name", CHOSEN)
def test_twenty_thousand_draws_have_the_distribution_of_the_numpy_model(name: str) -> None:
    raw = logits_of(1, seed=5)
    new = sequence(0, params(**CHOSEN[name]), PROMPT, OUTPUTS)
    sampler = sampler_with([replace(new, slot=slot, params=replace(new.params, seed=slot)) for slot in range(DRAWS)])
    output = sampler.sample(head_of(raw.expand(DRAWS, -1)), np.arange(DRAWS))
    likely = probabilities(raw[0].numpy(), new)
    assert chi_square_p(np.bincount(output.tokens, minlength=VOCAB), likely * DRAWS) > 1e-4
    if name != "neutral":
        neutral = probabilities(raw[0].numpy(), replace(new, params=params()))
        assert chi_square_p(np.bincount(output.tokens, minlength=VOCAB), neutral * DRAWS) < 1e-4


@pytest.mark.parametrize(
    "name", ["temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "logit_bias"]
)
def test_the_positions_of_one_request_have_the_distribution_too(name: str) -> None:
    raw = logits_of(1, seed=6)
    new = sequence(0, params(seed=77, **CHOSEN[name]))
    sampler = sampler_with([replace(new, slot=slot, num_output_tokens=slot) for slot in range(DRAWS)])
    output = sampler.sample(head_of(raw.expand(DRAWS, -1)), np.arange(DRAWS))
    assert chi_square_p(np.bincount(output.tokens, minlength=VOCAB), probabilities(raw[0].numpy(), new) * DRAWS) > 1e-4


def test_the_choices_of_a_request_draw_for_themselves() -> None:
    raw = logits_of(1, seed=7)
    new = sequence(0, params(seed=3, temperature=0.9, frequency_penalty=1.0), PROMPT)
    sampler = sampler_with([replace(new, slot=slot, choice_index=slot) for slot in range(DRAWS)])
    output = sampler.sample(head_of(raw.expand(DRAWS, -1)), np.arange(DRAWS))
    assert chi_square_p(np.bincount(output.tokens, minlength=VOCAB), probabilities(raw[0].numpy(), new) * DRAWS) > 1e-4
    following = sampler.sample(head_of(raw.expand(DRAWS, -1)[:50]), np.arange(50)).tokens
    for choice in range(50):
        went_on = sequence(0, new.params, PROMPT, (int(output.tokens[choice]),), choice_index=choice)
        assert following[choice] == drawn_by_model(raw[0].numpy(), went_on)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(8))
def test_a_whole_life_is_that_of_the_numpy_model(seed: int, dtype: torch.dtype) -> None:
    lives = random_sequences(25, seed)
    sampler = sampler_with(lives)
    for step in range(6):
        raw = logits_of(25, seed=100 * seed + step, dtype=dtype)
        output = sampler.sample(head_of(raw), np.arange(25))
        assert not output.row_errors
        expected = [drawn_by_model(raw[slot].double().numpy(), new) for slot, new in enumerate(lives)]
        assert output.tokens.tolist() == expected
        lives = [
            replace(new, token_ids=(*new.token_ids, token), num_output_tokens=new.num_output_tokens + 1)
            for new, token in zip(lives, expected, strict=True)
        ]


@pytest.mark.parametrize("vocab_size", [VOCAB, 1501])
def test_a_row_gives_the_same_token_and_logprobs_alone_and_in_fifty_batches(vocab_size: int) -> None:
    rng = np.random.default_rng(9)
    watched = replace(random_sequences(1, 4)[0], params=params(
        seed=12, temperature=0.8, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.4, logprobs=5,
    ))  # fmt: skip
    raw = logits_of(1, 1, vocab_size)
    alone = sampler_with([watched], vocab_size).sample(head_of(raw), np.zeros(1, np.int64))
    for batch in range(50):
        size = int(rng.integers(2, 30))
        slot = int(rng.integers(size))
        others = random_sequences(size, 1000 + batch)
        others[slot] = replace(watched, slot=slot)
        logits = logits_of(size, 2000 + batch, vocab_size)
        logits[slot] = raw[0]
        order = rng.permutation(size)
        output = sampler_with(others, vocab_size).sample(head_of(logits[torch.from_numpy(order)]), order)
        here = int(np.flatnonzero(order == slot)[0])
        assert output.tokens[here] == alone.tokens[0]
        assert output.logprobs[here] == alone.logprobs[0]


def test_readmission_with_the_outputs_so_far_goes_on_where_it_was() -> None:
    new = sequence(0, params(seed=5, repetition_penalty=1.3, presence_penalty=0.7), PROMPT)
    once, outputs = sampler_with([new]), []
    for step in range(8):
        outputs.append(int(once.sample(head_of(logits_of(1, step)), np.zeros(1, np.int64)).tokens[0]))
    again = sampler_with([sequence(0, random_params(np.random.default_rng(0)), (5,), (6, 7))])
    again.add_sequence(sequence(0, new.params, PROMPT, tuple(outputs[:5])))
    resumed = [int(again.sample(head_of(logits_of(1, step)), np.zeros(1, np.int64)).tokens[0]) for step in range(5, 8)]
    assert resumed == outputs[5:]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    new = sequence(
        0, params(temperature=0.3, top_k=2, repetition_penalty=2.0, logit_bias={4: 50.0}, logprobs=4), PROMPT
    )
    raw = logits_of(1, 11)
    output = sampler_with([new]).sample(head_of(raw), np.zeros(1, np.int64))
    right = raw[0].log_softmax(-1)
    entry = output.logprobs[0]
    assert entry is not None
    assert entry.token_id == output.tokens[0]
    assert entry.logprob == pytest.approx(float(right[entry.token_id]), rel=1e-12)
    assert [token for token, _ in entry.top] == right.argsort(descending=True)[:4].tolist()
    assert [value for _, value in entry.top] == pytest.approx(
        right.sort(descending=True).values[:4].tolist(), rel=1e-12
    )


def test_logprobs_come_only_to_rows_that_request_them() -> None:
    sequences = [sequence(0, params()), sequence(1, params(logprobs=0)), sequence(2, params(logprobs=2, temperature=0))]
    output = sampler_with(sequences).sample(head_of(logits_of(3)), np.arange(3))
    assert output.logprobs[0] is None
    assert [None if entry is None else len(entry.top) for entry in output.logprobs[1:]] == [0, 2]
    assert sampler_with(sequences).sample(head_of(logits_of(1)), np.zeros(1, np.int64)).logprobs == ()


def test_a_greedy_batch_is_one_argmax_and_of_equals_takes_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchSamplingOps, "sample_tokens", None)
    monkeypatch.setattr(sampler_module, "uniforms", None)
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [5.0, 0.0, 0.0, 5.0]]).bfloat16()
    sampler = sampler_with([sequence(slot, params(temperature=0.0)) for slot in range(2)], 4)
    assert sampler.sample(head_of(logits), np.arange(2)).tokens.tolist() == [1, 0]


def test_logits_of_sixteen_bits_are_shaped_in_thirty_two() -> None:
    logits = torch.tensor([[7.96875, 8.0]]).bfloat16()
    sampler = sampler_with([sequence(0, params(temperature=0.0, logit_bias={1: -0.02}))], 2)
    assert sampler.sample(head_of(logits), np.zeros(1, np.int64)).tokens.tolist() == [1]


def neighbours_and(
    culprit: NewSequence, change: Callable[[torch.Tensor], None]
) -> tuple[list[int], dict[int, Exception]]:
    """Sample six rows, then again with row 2 spoilt; the other rows' tokens must not change. Returns tokens, errors."""
    clean = [sequence(slot, params(seed=slot, top_p=0.9, repetition_penalty=1.1)) for slot in range(6)]
    logits = logits_of(6, 3)
    before = sampler_with(clean).sample(head_of(logits), np.arange(6)).tokens.tolist()
    change(logits)
    output = sampler_with([*clean[:2], culprit, *clean[3:]]).sample(head_of(logits), np.arange(6))
    after = output.tokens.tolist()
    assert before[:2] + before[3:] == after[:2] + after[3:]
    assert all(0 <= token < VOCAB for token in after)
    return after, output.row_errors


def spoil(value: float, where: slice | int) -> Callable[[torch.Tensor], None]:
    def change(logits: torch.Tensor) -> None:
        logits[2, where] = value

    return change


@pytest.mark.parametrize(
    ("value", "where"), [(torch.nan, 7), (torch.inf, 7), (torch.nan, slice(None)), (-torch.inf, slice(None))]
)
@pytest.mark.parametrize("chosen", [{"temperature": 0.0}, {}, {"top_k": 3}, {"logprobs": 2}, {"presence_penalty": 1.0}])
def test_logits_that_are_no_numbers_fail_their_own_row_only(
    value: float, where: slice | int, chosen: dict[str, object]
) -> None:
    _, row_errors = neighbours_and(sequence(2, params(**chosen)), spoil(value, where))
    assert list(row_errors) == [2]
    assert isinstance(row_errors[2], NonFiniteLogits)


def test_a_few_logits_of_minus_infinity_are_bans_and_no_fault() -> None:
    after, row_errors = neighbours_and(sequence(2, params()), spoil(-torch.inf, slice(1, None)))
    assert not row_errors
    assert after[2] == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_bans_every_token_fails_alone_and_hears_why(temperature: float) -> None:
    bans = {token: -100.0 for token in range(VOCAB) if token not in EOS_AND_STOP}
    culprit = sequence(2, params(temperature=temperature, logit_bias=bans, min_tokens=2, stop_token_ids=(8,)))
    _, row_errors = neighbours_and(culprit, lambda logits: None)
    assert list(row_errors) == [2]
    assert isinstance(row_errors[2], NoAllowedToken)
    assert "every token is banned: 37 by logit_bias, 3 by min_tokens 2" in row_errors[2].message


EOS_AND_STOP = (3, 5, 8)


def test_penalties_that_overflow_fail_alone() -> None:
    _, row_errors = neighbours_and(
        sequence(2, params(repetition_penalty=5e-324), tuple(range(VOCAB))), lambda logits: None
    )
    assert list(row_errors) == [2]
    assert isinstance(row_errors[2], NoAllowedToken)


def test_an_exception_in_one_request_of_the_batched_way_is_confined_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sampler_module.uniforms

    def raising(seeds: np.ndarray, choices: np.ndarray, positions: np.ndarray) -> np.ndarray:
        if 666 in seeds:
            raise ZeroDivisionError("in the middle of a draw")
        return real(seeds, choices, positions)

    monkeypatch.setattr(sampler_module, "uniforms", raising)
    _, row_errors = neighbours_and(sequence(2, params(seed=666)), lambda logits: None)
    assert list(row_errors) == [2]
    assert type(row_errors[2]) is SamplingFailed, "not an error of the request's parameters"
    assert row_errors[2].details["cause"] == "in the middle of a draw"
    assert isinstance(row_errors[2].__cause__, ZeroDivisionError)


def test_a_raising_row_costs_its_neighbours_neither_logprobs_nor_history(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = [sequence(slot, params(seed=slot, frequency_penalty=0.9, logprobs=2)) for slot in range(3)]
    calm = sampler_with(lives)
    calm_steps = [calm.sample(head_of(logits_of(3, step)), np.arange(3)) for step in range(5)]
    real = sampler_module.process_logits
    shaken = sampler_with(lives)

    def raising(logits: torch.Tensor, row_processors: list[object], counts: np.ndarray) -> None:
        if any(row_processor is shaken._state.row_processors[1] for row_processor in row_processors):
            raise RuntimeError("one bad row")
        real(logits, row_processors, counts)

    monkeypatch.setattr(sampler_module, "process_logits", raising)
    for step, calm_one in enumerate(calm_steps):
        output = shaken.sample(head_of(logits_of(3, step)), np.arange(3))
        assert list(output.row_errors) == [1]
        assert output.tokens[[0, 2]].tolist() == calm_one.tokens[[0, 2]].tolist()
        assert (output.logprobs[0], output.logprobs[2]) == (calm_one.logprobs[0], calm_one.logprobs[2])


def test_a_token_outside_the_vocabulary_in_logit_bias_fails_its_request_alone() -> None:
    _, row_errors = neighbours_and(sequence(2, params(logit_bias={VOCAB: 1.0})), lambda logits: None)
    assert list(row_errors) == [2]
    assert isinstance(row_errors[2], TokenOutOfRange)


def test_the_slot_of_a_refused_request_serves_the_next_one() -> None:
    sampler = sampler_with([sequence(0, params(logit_bias={VOCAB: 1.0}))])
    assert sampler.sample(head_of(logits_of(1)), np.zeros(1, np.int64)).row_errors
    sampler.remove_slot(0)
    sampler.remove_slot(0)
    sampler.add_sequence(sequence(0, params(temperature=0.0)))
    assert not sampler.sample(head_of(logits_of(1)), np.zeros(1, np.int64)).row_errors


def test_the_logits_that_were_given_are_left_as_they_were() -> None:
    logits = logits_of(12)
    kept = logits.clone()
    sampler_with(random_sequences(12, 5)).sample(partial(compute_lm_head_output, logits), np.arange(12))
    assert torch.equal(logits, kept)


def test_a_step_without_rows_draws_nothing() -> None:
    output = sampler_with([sequence(0, params())]).sample(head_of(torch.empty(0, VOCAB)), np.empty(0, np.int64))
    assert len(output.tokens) == 0
    assert not output.row_errors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [VOCAB, 64, 1501])
def test_a_masked_row_draws_what_a_request_with_these_allowed_tokens_draws(vocab_size: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(vocab_size)
    lives = random_sequences(30, 77)
    logits = logits_of(30, 8, vocab_size, dtype)
    allowed = {row: {int(token) for token in rng.choice(vocab_size, 12, replace=False)} for row in range(0, 30, 2)}
    output = sampler_with(lives, vocab_size).sample(head_of(logits), np.arange(30), masks_of(vocab_size, allowed))
    for row, new in enumerate(lives):
        only = set(new.params.allowed_token_ids or range(vocab_size)) & allowed.get(row, set(range(vocab_size)))
        sequences = replace(new, params=replace(new.params, allowed_token_ids=tuple(sorted(only))))
        if only and np.isfinite(shaped_logits(logits[row].double().numpy(), sequences)).any():
            assert row not in output.row_errors
            assert output.tokens[row] == drawn_by_model(logits[row].double().numpy(), sequences)
        else:
            assert isinstance(output.row_errors[row], NoAllowedToken)
            assert "the structured output allows" in output.row_errors[row].message


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
        assert not output.row_errors and output.tokens[0] == drawn_by_model(moved, plain), step
        outputs += (int(output.tokens[0]),)


@pytest.mark.parametrize(
    ("name", "message_part"),
    [
        ("raising", "the sampler raised ZeroDivisionError"), ("nan", "'nan' returned NaN"),
        ("short", "returned [1, 39], not [1, 40]"), ("nothing", "returned NoneType"),
        ("banning", "bans every token"), ("absent", "there is no logits processor 'absent'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logits_processor_that_fails_fails_its_request_alone(
    name: str, message_part: str, temperature: float
) -> None:
    clean = [sequence(slot, params(seed=slot, top_p=0.9, repetition_penalty=1.1)) for slot in range(4)]
    logits = logits_of(4, 3)
    before = with_factories(clean).sample(head_of(logits), np.arange(4)).tokens.tolist()
    culprit = sequence(2, params(temperature=temperature, logits_processors=[name]))
    output = with_factories([*clean[:2], culprit, clean[3]]).sample(head_of(logits), np.arange(4))
    assert list(output.row_errors) == [2]
    assert isinstance(output.row_errors[2], SamplingFailed) and message_part in output.row_errors[2].message
    assert output.tokens[[0, 1, 3]].tolist() == [*before[:2], before[3]]


def test_arguments_that_a_factory_does_not_take_fail_their_request_alone() -> None:
    sampler = with_factories([sequence(0, params(logits_processors={"nan": {"no": 1}})), sequence(1, params())])
    output = sampler.sample(head_of(logits_of(2)), np.arange(2))
    assert list(output.row_errors) == [0] and "TypeError" in output.row_errors[0].message


class RecordingHead:
    """A head that stores the request it got."""

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw
        self.request: LogitsRequest

    def __call__(self, request: LogitsRequest) -> LMHeadOutput:
        self.request = request
        return compute_lm_head_output(self.raw.clone(), request)


@pytest.mark.parametrize(
    "wants", [{"temperature": 0.5}, {"logprobs": 0}, {"frequency_penalty": 0.5}, {"min_tokens": 3}]
)
def test_logits_are_requested_only_for_rows_that_need_more_than_the_largest(wants: dict[str, float]) -> None:
    sampler = sampler_with([sequence(0, params(temperature=0.0)), sequence(1, params(**{"temperature": 0.0, **wants}))])
    head = RecordingHead(logits_of(2))
    sampler.sample(head, np.arange(2), masks_of(VOCAB, {0: {3, 5}, 1: {2, 4}}))
    assert head.request.needs_logits.tolist() == [False, True]
    is_unprocessed = set(wants) == {"temperature"}
    assert head.request.masked_rows.tolist() == ([0, 1] if is_unprocessed else [0])


def test_an_exception_of_the_head_is_no_row_error() -> None:
    def head(request: LogitsRequest) -> LMHeadOutput:
        raise MemoryError("no memory for the head")

    sampler = sampler_with([sequence(0, params(temperature=0.0))])
    with pytest.raises(MemoryError, match="the head"):
        sampler.sample(head, np.arange(1))
    assert sampler._state.num_outputs.tolist() == [0]


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
