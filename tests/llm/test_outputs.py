"""Outputs: is_final marks the last event of a request; logprobs by token id with rank and text."""

import math

from chairlift.core.engine_output import TokenLogprob, Usage
from chairlift.llm.outputs import CompletionOutput, Logprob, RequestOutput, logprobs_by_token
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.token_pieces import TokenPieces
from support_shares import for_each

PIECES = TokenPieces(ByteTokenizer())


@for_each(
    ("entry", "expected"),
    [
        (TokenLogprob(97, -2.0), [(97, Logprob(-2.0, None, "a"))]),
        (TokenLogprob(97, -0.5, ((97, -0.5), (98, -1.0))), [(97, Logprob(-0.5, 1, "a")), (98, Logprob(-1.0, 2, "b"))]),
        (TokenLogprob(98, -1.0, ((97, -0.5), (98, -1.0))), [(98, Logprob(-1.0, 2, "b")), (97, Logprob(-0.5, 1, "a"))]),
        (TokenLogprob(99, -4.0, ((97, -0.5),)), [(99, Logprob(-4.0, None, "c")), (97, Logprob(-0.5, 1, "a"))]),
        (TokenLogprob(0xE4, -1.0), [(0xE4, Logprob(-1.0, None, "\ufffd"))]),
        (TokenLogprob(257, -1.0), [(257, Logprob(-1.0, None, "<|eos|>"))]),
    ],
)
def test_the_sampled_token_comes_first_and_the_likeliest_have_ranks(
    entry: TokenLogprob, expected: list[tuple[int, Logprob]]
) -> None:
    assert list(logprobs_by_token(entry, PIECES).items()) == expected


def test_without_a_tokenizer_a_token_has_no_text() -> None:
    assert logprobs_by_token(TokenLogprob(97, -2.0), None) == {97: Logprob(-2.0)}


def test_a_choice_has_logprobs_and_their_sum_only_when_requested() -> None:
    entries = [TokenLogprob(97, -0.25), TokenLogprob(98, -0.5)]
    choice = CompletionOutput(token_ids=[97, 98], token_logprobs=entries, token_pieces=PIECES)
    assert choice.logprobs == [{97: Logprob(-0.25, None, "a")}, {98: Logprob(-0.5, None, "b")}]
    assert choice.logprobs is choice.logprobs  # computed once
    entries.append(TokenLogprob(99, -math.log(2)))
    assert len(choice.logprobs) == 3 and choice.cumulative_logprob == -0.75 - math.log(2)
    assert (CompletionOutput().logprobs, CompletionOutput().cumulative_logprob) == (None, None)
    assert not choice.finished() and CompletionOutput(finish_reason="stop").finished()  # type: ignore[arg-type]


def test_the_first_token_of_a_prompt_has_no_logprobs() -> None:
    usage = Usage(2, 0, 1)
    output = RequestOutput("r", None, [97, 98], [], usage, prompt_token_logprobs=[None, TokenLogprob(98, -1.0)])
    assert output.prompt_logprobs == [None, {98: Logprob(-1.0)}] and output.prompt_logprobs is output.prompt_logprobs
    assert RequestOutput("r", None, [97, 98], [], usage).prompt_logprobs is None
    assert output.finished and output.num_cached_tokens == 1
