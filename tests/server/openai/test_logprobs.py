"""logprobs.py: logprobs of chats and completions, with token bytes and text offsets."""

import json
from math import inf, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import ChoiceLogprobs

from chairlift.core.engine_output import TokenLogprob
from chairlift.server.openai.logprobs import MIN_LOGPROB, ChatLogprobs, CompletionLogprobs
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.token_pieces import TokenPieces
from support_text import tokenizer_of

QWEN = tokenizer_of("qwen")
PIECES = TokenPieces(QWEN)
BYTES = TokenPieces(ByteTokenizer())
TEXT = "The Ü lift 中文 🚡."


def with_logprobs(token_ids: list[int], top: int = 0) -> list[TokenLogprob]:
    """Return logprobs of tokens, each with its neighbours in the vocabulary as top tokens."""
    return [
        TokenLogprob(token, -1 - rank, tuple((token + rank, -1 - rank - rank) for rank in range(top)))
        for rank, token in enumerate(token_ids)
    ]


# -- of chats ----------------------------------------------------------------------------------------------------------


def test_a_chats_token_has_its_text_its_bytes_and_the_likeliest_beside_it() -> None:
    entry = TokenLogprob(65, -0.5, ((65, -0.5), (66, -1.5), (67, -2.5)))
    assert ChatLogprobs(BYTES, 2).of([entry]) == {
        "content": [
            {
                "token": "A", "logprob": -0.5, "bytes": [65],
                "top_logprobs": [
                    {"token": "A", "logprob": -0.5, "bytes": [65]}, {"token": "B", "logprob": -1.5, "bytes": [66]},
                ],
            }
        ],
        "refusal": None,
    }  # fmt: skip
    assert ChatLogprobs(BYTES, 0).of([entry])["content"][0]["top_logprobs"] == []
    assert ChatLogprobs(BYTES, 5).of([]) == {"content": [], "refusal": None}


@pytest.mark.parametrize("style", ["qwen", "llama3", "mistral", "gemma"])
def test_the_bytes_of_a_chats_tokens_are_its_text(style: str) -> None:
    tokenizer = tokenizer_of(style)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    result = ChatLogprobs(TokenPieces(tokenizer), 3).of(with_logprobs(ids, 3))
    assert bytes(byte for entry in result["content"] for byte in entry["bytes"]).decode().lstrip() == TEXT
    assert len(ids) == len(result["content"]) and all(len(entry["top_logprobs"]) == 3 for entry in result["content"])


def test_minus_infinity_is_a_number_that_json_can_say() -> None:
    entry = TokenLogprob(65, -inf, ((65, -1e9), (66, -inf)))
    chat, completion = ChatLogprobs(BYTES, 2).of([entry]), CompletionLogprobs(BYTES, None, 2).of([entry])
    for result in (chat, completion):
        assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert chat["content"][0]["logprob"] == completion["token_logprobs"][0] == MIN_LOGPROB
    assert {each["logprob"] for each in chat["content"][0]["top_logprobs"]} == {MIN_LOGPROB}
    assert completion["top_logprobs"] == [{"A": MIN_LOGPROB, "B": MIN_LOGPROB}]


@given(st.lists(st.tuples(st.integers(0, QWEN.vocab_size + 20), st.floats(max_value=0, allow_nan=False)), max_size=6))
def test_any_scores_of_a_chat_are_those_of_openais_type(entries: list[tuple[int, float]]) -> None:
    result = ChatLogprobs(PIECES, 2).of(
        [TokenLogprob(token, logprob, ((token, logprob),)) for token, logprob in entries]
    )
    model = ChoiceLogprobs.model_validate_json(json.dumps(result, allow_nan=False), strict=True)
    assert model.content is not None and model.model_extra == {}
    assert [each.bytes for each in model.content] == [list(PIECES.bytes_of(token)) for token, _ in entries]


# -- of completions ----------------------------------------------------------------------------------------------------


def test_a_completions_lists_lie_side_by_side() -> None:
    entries = [TokenLogprob(65, -0.5, ((66, -0.1), (65, -0.5))), TokenLogprob(66, -1.0, ((66, -1.0), (67, -2.0)))]
    assert CompletionLogprobs(BYTES, None, 2).of(entries) == {
        "tokens": ["A", "B"], "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{"A": -0.5, "B": -0.1}, {"B": -1.0, "C": -2.0}], "text_offset": [0, 1],
    }  # fmt: skip


def test_the_chosen_token_is_among_the_likeliest_whatever_was_asked() -> None:
    entry = TokenLogprob(65, -5.0, ((66, -0.1), (67, -0.2), (68, -0.3)))
    assert CompletionLogprobs(BYTES, None, 0).of([entry])["top_logprobs"] == [{"A": -5.0}]
    assert CompletionLogprobs(BYTES, None, 2).of([entry])["top_logprobs"] == [{"A": -5.0, "B": -0.1, "C": -0.2}]


def test_of_tokens_with_the_same_text_the_chosen_one_counts_and_then_the_likeliest() -> None:
    empty_tokens = (QWEN.vocab_size + 1, QWEN.vocab_size + 2, QWEN.vocab_size + 3)
    assert {PIECES.text_of(token) for token in empty_tokens} == {""}
    top = tuple((token, -0.1 - rank) for rank, token in enumerate(empty_tokens))
    entry = TokenLogprob(empty_tokens[1], -1.1, top)
    assert CompletionLogprobs(PIECES, None, 3).of([entry])["top_logprobs"] == [{"": -1.1}]
    other = TokenLogprob(QWEN.encode("a")[0], -3.0, top)
    assert CompletionLogprobs(PIECES, None, 3).of([other])["top_logprobs"] == [{"a": -3.0, "": -0.1}]


def test_an_echoed_prompt_comes_first_and_its_first_token_has_no_score() -> None:
    logprobs = CompletionLogprobs(BYTES, (72, 105), 1)
    first = logprobs.of([TokenLogprob(65, -1.0, ((65, -1.0),))], [TokenLogprob(105, -2.0, ((106, -0.5),))])
    assert first == {
        "tokens": ["H", "i", "A"], "token_logprobs": [None, -2.0, -1.0],
        "top_logprobs": [None, {"i": -2.0, "j": -0.5}, {"A": -1.0}], "text_offset": [0, 1, 2],
    }  # fmt: skip
    assert logprobs.of([TokenLogprob(66, -3.0)]) == {
        "tokens": ["B"], "token_logprobs": [-3.0], "top_logprobs": [{"B": -3.0}], "text_offset": [3],
    }  # fmt: skip
    assert logprobs.of([])["tokens"] == []


def test_an_echoed_prompt_of_one_token_has_no_score_at_all() -> None:
    assert CompletionLogprobs(BYTES, (72,), 1).of([])["token_logprobs"] == [None]


@given(st.text(st.characters(codec="utf-8"), max_size=12), st.integers(0, 40), st.integers(0, 5))
def test_offsets_say_where_a_tokens_text_begins(text: str, cut: int, num_echoed: int) -> None:
    """Offsets count characters; part of a character has the offset of the character."""
    text = TEXT + text
    ids = QWEN.encode(text, add_special_tokens=False)
    prompt = ids[:num_echoed]
    logprobs = CompletionLogprobs(PIECES, prompt or None, 0)
    result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    parts = (
        logprobs.of(with_logprobs(ids[num_echoed:cut]), with_logprobs(prompt[1:])),
        logprobs.of(with_logprobs(ids[max(cut, num_echoed) :])),
    )
    for part in parts:
        for name, values in part.items():
            result[name] += values
    assert {len(values) for values in result.values()} == {len(ids)}
    for token, offset in zip(result["tokens"], result["text_offset"], strict=True):
        assert token.startswith("bytes:") or text.startswith(token, offset), (token, offset)
    assert result["text_offset"] == sorted(result["text_offset"])


def test_a_part_of_a_character_is_its_bytes() -> None:
    ids = ByteTokenizer().encode("é!", add_special_tokens=False)
    result = CompletionLogprobs(BYTES, None, 0).of([TokenLogprob(token, log(0.5)) for token in ids])
    assert result["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert result["text_offset"] == [0, 0, 1], "the next token starts after the character, however it was cut"
