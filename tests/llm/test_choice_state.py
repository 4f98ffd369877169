"""ChoiceState: the tokens it accepts and the text it returns."""

from chairlift.core.request import FinishReason, GenerateRequest, TokenLogprob
from chairlift.core.sampling import SamplingParams
from chairlift.llm.choice_state import ChoiceState
from chairlift.text.tokenizer import ByteTokenizer


def choice(**params: object) -> ChoiceState:
    resolved = SamplingParams(**params).with_defaults({}, max_tokens=9, seed=4)
    return ChoiceState(
        GenerateRequest(request_id="r", prompt_token_ids=(1,), params=resolved), 1, ByteTokenizer(), None
    )


def test_tokens_behind_a_stop_string_are_not_taken() -> None:
    assert choice(stop="b").add_tokens(tuple(b"abc"), last=False) == ("a", 2, "b")


def test_what_is_held_back_comes_with_the_last_token_and_only_once() -> None:
    under_test = choice(stop="bc")
    assert under_test.add_tokens(tuple(b"ab"), last=False) == ("a", 2, None)
    assert under_test.add_tokens((), last=True) == ("b", 0, None)
    assert under_test.add_tokens((), last=True) == ("", 0, None)


def test_a_repeated_end_is_emitted_once() -> None:
    under_test = choice()
    assert under_test.add_tokens(tuple(b"a\xc3"), last=True) == ("a\ufffd", 2, None)
    assert under_test.add_tokens((), last=True) == ("", 0, None)


def test_a_token_that_stops_it_has_no_text() -> None:
    assert choice(stop_token_ids=[98]).add_tokens(tuple(b"abab"), last=True) == ("aba", 4, None)
    assert choice(stop_token_ids=[98]).add_tokens(tuple(b"abab"), last=False) == ("abab", 4, None)
    assert choice(stop_token_ids=[98], stop="ba").add_tokens(tuple(b"aab"), last=True) == ("aa", 3, None)


def test_it_adds_up_to_its_output() -> None:
    under_test = choice(logprobs=0)
    under_test.take("a", (97,), (TokenLogprob(97, -0.5),))
    under_test.take("b", (98,), (TokenLogprob(98, -1.5),))
    assert under_test.mean_logprob == -1.0
    under_test.end(FinishReason.STOP, 98)
    made = under_test.output
    assert (made.index, made.text, made.token_ids, made.stop_reason, made.seed) == (1, "ab", [97, 98], 98, 4)
