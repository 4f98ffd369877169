"""ScriptedResponse writes streams and whole responses that a client of OpenAI's API understands."""

import json

import orjson
import pytest

from router_overhead.scripted_responses import LAST_CHUNK, ResponseForm, ScriptedResponse


def form(**fields: object) -> ResponseForm:
    body = {"messages": [{"role": "user", "content": "17 words"}], "max_tokens": 3, "stream": True, **fields}
    return ResponseForm.of(b"/v1/chat/completions", orjson.dumps(body), reports_progress=False)


def events(data: bytes) -> list[bytes]:
    """Return the data of the events in a chunked body."""
    found, rest = [], data
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunk, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        if chunk:
            found.append(chunk.removeprefix(b"data: ").removesuffix(b"\n\n"))
    return found


def test_the_form_has_the_number_with_which_the_prompt_begins() -> None:
    assert form().number == 17
    assert ResponseForm.of(b"/v1/completions", b'{"prompt": "5 a"}', reports_progress=False).number == 5
    assert ResponseForm.of(b"/v1/completions", b'{"prompt": "a"}', reports_progress=False).number == 0


@pytest.mark.parametrize("returns_token_ids", [False, True])
def test_a_stream_has_one_event_for_each_token_and_ends(returns_token_ids: bool) -> None:
    response = ScriptedResponse(form(return_token_ids=returns_token_ids), "a")
    data = [response.next_event() for _ in range(3)]
    assert response.is_complete and data[-1].endswith(LAST_CHUNK)
    *chunks, done = events(b"".join(data))
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert done == b"[DONE]" and [each["finish_reason"] for each in choices] == [None, None, "length"]
    assert [each.get("position") for each in choices] == ([0, 1, 2] if returns_token_ids else [None] * 3)


def test_a_stream_ends_early_when_its_number_of_tokens_is_lowered() -> None:
    response = ScriptedResponse(form(), "a")
    response.next_event()
    response.num_tokens = 2
    assert response.next_event().endswith(LAST_CHUNK) and response.is_complete


def test_a_whole_response_has_all_words_and_its_progress_comes_before_it() -> None:
    response = ScriptedResponse(form(stream=False), "a")
    body = json.loads(response.whole_body())
    assert body["choices"][0]["message"]["content"] == " the quick brown"
    assert body["usage"]["completion_tokens"] == 3
    *progress, last = events(response.progress_body())
    assert len(progress) == 3 and last.startswith(b"event: response\n")
