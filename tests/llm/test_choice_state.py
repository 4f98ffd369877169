"""ChoiceState: the tokens it accepts and the text it returns."""

from chairlift.core.engine_output import FinishReason, TokenLogprob
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import MODEL_DEFAULTS, SamplingParams
from chairlift.llm.choice_state import ChoiceState
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.stop_strings import StopStringAutomaton


def make_choice(**params: object) -> ChoiceState:
    resolved = SamplingParams(**{**MODEL_DEFAULTS, **params}).with_defaults({}, max_tokens=9, seed=4)
    request = GenerateRequest(request_id="r", prompt_token_ids=(1,), params=resolved)
    stops = StopStringAutomaton(resolved.stop) if resolved.stop else None
    return ChoiceState(request, 1, ByteTokenizer(), None, stops)


def test_tokens_behind_a_stop_string_are_not_taken() -> None:
    assert make_choice(stop="b").add_tokens(tuple(b"abc"), last=False) == ("a", 2, "b")


def test_what_is_held_back_comes_with_the_last_token_and_only_once() -> None:
    state = make_choice(stop="bc")
    assert state.add_tokens(tuple(b"ab"), last=False) == ("a", 2, None)
    assert state.add_tokens((), last=True) == ("b", 0, None)
    assert state.add_tokens((), last=True) == ("", 0, None)


def test_a_repeated_end_is_emitted_once() -> None:
    state = make_choice()
    assert state.add_tokens(tuple(b"a\xc3"), last=True) == ("a\ufffd", 2, None)
    assert state.add_tokens((), last=True) == ("", 0, None)


def test_a_token_that_stops_it_has_no_text() -> None:
    assert make_choice(stop_token_ids=[98]).add_tokens(tuple(b"abab"), last=True) == ("aba", 4, None)
    assert make_choice(stop_token_ids=[98]).add_tokens(tuple(b"abab"), last=False) == ("abab", 4, None)
    assert make_choice(stop_token_ids=[98], stop="ba").add_tokens(tuple(b"aab"), last=True) == ("aa", 3, None)


def test_it_adds_up_to_its_output() -> None:
    state = make_choice(logprobs=0)
    state.take("a", (97,), (TokenLogprob(97, -0.5),))
    state.take("b", (98,), (TokenLogprob(98, -1.5),))
    assert state.mean_logprob == -1.0
    state.end(FinishReason.STOP, 98)
    output = state.output
    assert (output.index, output.text, output.token_ids, output.stop_reason, output.seed) == (1, "ab", [97, 98], 98, 4)
