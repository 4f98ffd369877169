"""next_token, expected_tokens: tokens depend on the window and, if drawn, on the seed; a stop token ends them."""

from dataclasses import replace

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens, next_token
from chairlift.engine.runner.fake_states import ZERO_STATE, advance_state
from support_engine import make_request

FAKE = FakeConfig(vocab_size=200, num_blocks=8, block_size=4)

GREEDY = make_request("a", 3, 6).params


def test_the_window_bounds_what_the_next_token_depends_on() -> None:
    windowed = replace(FAKE, windows=(3,))
    assert next_token([1, 2, 3, 4], GREEDY, windowed) == next_token([9, 2, 3, 4], GREEDY, windowed)
    mixed = replace(FAKE, windows=(None, 3))
    assert next_token([1, 2, 3, 4], GREEDY, mixed) != next_token([9, 2, 3, 4], GREEDY, mixed)


def test_with_a_state_a_token_depends_on_the_state_and_on_every_token_before() -> None:
    for windows in ((), (3,), (None,)):
        fake = replace(FAKE, windows=windows, has_state=True)
        assert next_token([1, 2, 3, 4], GREEDY, fake) != next_token([9, 2, 3, 4], GREEDY, fake)
        own = advance_state(ZERO_STATE, [1, 2, 3, 4])
        assert next_token([1, 2, 3, 4], GREEDY, fake) == next_token([1, 2, 3, 4], GREEDY, fake, state=own)
        assert next_token([1, 2, 3, 4], GREEDY, fake) != next_token([1, 2, 3, 4], GREEDY, fake, state=(4, 1))
        first = next_token([1, 2], GREEDY, fake)
        params = replace(GREEDY, max_tokens=2)
        assert expected_tokens([1, 2], params, fake) == [first, next_token([1, 2, first], GREEDY, fake)]


def test_only_a_drawn_token_depends_on_the_requests_seed() -> None:
    drawn = SamplingParams(max_tokens=3, temperature=1.0, seed=1).with_defaults({}, max_tokens=1, seed=0)
    assert next_token([1], drawn, FAKE) != next_token([1], replace(drawn, seed=2), FAKE)
    assert next_token([1], GREEDY, FAKE) == next_token([1], replace(GREEDY, seed=2), FAKE)


def test_expected_tokens_end_with_the_stop_token() -> None:
    whole = expected_tokens([1, 2], GREEDY, FAKE)
    assert len(whole) == 6
    assert expected_tokens([1, 2], replace(GREEDY, stop_token_ids=(whole[2],)), FAKE) == whole[:3]
    assert expected_tokens([1, 2], GREEDY, FAKE, eos_token_ids=(whole[1],)) == whole[:2]
