"""response.py: completion responses, whole and streamed, match OpenAI's response types."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from chairlift.core.engine_output import Usage
from chairlift.llm.text_event import TextEvent
from chairlift.server.openai.response_renderers import usage_object
from support_responses import (
    LENGTH,
    check_type,
    chunks_of,
    completion_renderer,
    completion_request,
    events_of,
    logprobs_of,
    only_choice,
    render_chunks,
    result_of,
)


@pytest.mark.parametrize(
    ("more", "extensions", "untyped"),
    [
        ({}, set(), ()),
        ({"logprobs": 2}, set(), ()),
        ({"return_token_ids": True}, {"token_ids", "prompt_token_ids"}, ()),
        # OpenAI itself sends null for the first token, which its type does not allow
        ({"logprobs": 2, "echo": True}, set(),
         ("choices.0.logprobs.token_logprobs.0", "choices.0.logprobs.top_logprobs.0")),
    ],
)  # fmt: skip
def test_a_whole_completion_is_of_openais_type(
    more: dict[str, Any], extensions: set[str], untyped: tuple[str, ...]
) -> None:
    body = completion_renderer(completion_request(**more)).full_response(
        [result_of("Hello.", echo="" if "echo" in more else None)]
    )
    check_type(Completion, body, extensions, untyped)
    (choice,) = body["choices"]
    assert (choice["text"], choice["index"], choice["finish_reason"]) == ("Hello.", 0, "stop")
    assert (choice["logprobs"] is None) == ("logprobs" not in more)


def test_an_echoed_prompts_scores_come_first() -> None:
    (choice,) = completion_renderer(completion_request(logprobs=1, echo=True)).full_response(
        [result_of("ab", echo="xy")]
    )["choices"]
    assert choice["text"] == "xyab"
    assert choice["logprobs"]["tokens"] == ["x", "y", "a", "b"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


def test_choices_of_several_prompts_are_numbered_through() -> None:
    results = [result_of("a", "b"), result_of("c", "d", prompt=(7,))]
    body = completion_renderer(completion_request(prompt=["x", "y"], n=2, return_token_ids=True)).full_response(results)
    check_type(Completion, body, {"token_ids", "prompt_token_ids"})
    result = [(choice["index"], choice["text"], choice["prompt_token_ids"]) for choice in body["choices"]]
    assert result == [(0, "a", [120, 121]), (1, "b", [120, 121]), (2, "c", [7]), (3, "d", [7])]
    assert body["usage"] == usage_object(Usage(3, 4, 2)), "the sum over all prompts"


def test_every_chunk_of_a_completion_is_of_openais_type() -> None:
    """Check each chunk.

    OpenAI itself sends a null finish reason, which its type allows in the last chunk only.
    """
    for more, extensions in (
        ({}, set()),
        ({"logprobs": 1}, set()),
        ({"return_token_ids": True}, {"token_ids", "position"}),
    ):
        renderer = completion_renderer(completion_request(stream=True, **more))
        *chunks, last = render_chunks(renderer, events_of("Hello.", (2, 4), num_held_chars=1))
        for chunk in chunks:
            check_type(Completion, chunk, extensions, ["choices.0.finish_reason"])
            choice = {**only_choice(chunk), "finish_reason": "stop"}
            check_type(Completion, {**chunk, "choices": [choice]}, extensions)
        check_type(Completion, last, extensions)
        assert only_choice(last)["finish_reason"] == "stop"


@given(
    st.text(st.characters(codec="ascii"), max_size=20),
    st.lists(st.integers(0, 20), max_size=5),
    st.integers(0, 3),
    st.integers(0, 1),
    st.booleans(),
    st.booleans(),
)
def test_a_streamed_completion_says_what_the_whole_one_does(
    text: str, cuts: list[int], num_held_chars: int, number: int, ids: bool, echo: bool
) -> None:
    request = completion_request(prompt=["x", "y"], n=2, logprobs=1, return_token_ids=ids, echo=echo)
    first, *events = events_of(text, [min(cut, len(text)) for cut in cuts], num_held_chars=num_held_chars, index=1)
    if echo:
        first = replace(first, delta=f"xy{first.delta}", prompt_logprobs=logprobs_of((121,)))
    chunks = [
        only_choice(chunk) for chunk in render_chunks(completion_renderer(request), iter([first, *events]), number)
    ]
    results = [result_of("a", text, echo="xy" if echo else None) for _ in range(2)]
    full = completion_renderer(request).full_response(results)["choices"][2 * number + 1]
    assert {chunk["index"] for chunk in chunks} == {full["index"]}
    assert "".join(chunk["text"] for chunk in chunks) == full["text"] == "xy" * echo + text
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    for name, values in full["logprobs"].items():
        assert [value for chunk in chunks for value in chunk["logprobs"][name]] == values, name
    if ids:
        assert [token for chunk in chunks for token in chunk["token_ids"]] == full["token_ids"]
        assert [chunk["position"] for chunk in chunks] == [
            sum(len(before["token_ids"]) for before in chunks[:index]) for index in range(len(chunks))
        ]


def test_a_completion_says_nothing_while_there_is_nothing_to_say() -> None:
    silent = TextEvent("r", "", (200,), logprobs_of((200,)))
    for more, is_sent in (({}, False), ({"return_token_ids": True}, True), ({"logprobs": 0}, True)):
        assert bool(completion_renderer(completion_request(stream=True, **more)).event(0, silent)) is is_sent
    ended = TextEvent("r", "", (2,), finish_reason=LENGTH)
    (chunk,) = chunks_of(completion_renderer(completion_request(stream=True)).event(0, ended))
    assert only_choice(chunk) == {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}


def test_an_echoed_prompt_waits_for_the_first_token_where_the_client_counts_them() -> None:
    """A stream without a delivered token starts again elsewhere, and the prompt would come twice."""
    renderer = completion_renderer(completion_request(stream=True, return_token_ids=True, logprobs=1, echo=True))
    assert not renderer.event(0, TextEvent("r", "xy", prompt_logprobs=logprobs_of((121,))))
    (chunk,) = chunks_of(renderer.event(0, TextEvent("r", "a", (97,), logprobs_of((97,)))))
    choice = only_choice(chunk)
    assert (choice["text"], choice["token_ids"]) == ("xya", [97])
    assert choice["logprobs"]["tokens"][-2:] == ["y", "a"]


def test_a_resumed_completion_goes_on_counting() -> None:
    renderer = completion_renderer(completion_request(stream=True, n=2, return_token_ids=True, resume=[[], [7, 8]]))
    chunks = render_chunks(renderer, events_of("ab", (1,), index=1))
    assert [only_choice(chunk)["position"] for chunk in chunks] == [2, 3]
