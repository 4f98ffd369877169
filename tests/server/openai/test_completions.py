"""/v1/completions over a fake engine: text or ids, several prompts, echo, logprobs."""

import asyncio
from typing import Any

from chairlift.core.sampling_params import SamplingParams
from support_server import COMPLETIONS, events, open_server, run
from support_services import FAKE, fake_service, text_of

PARAMS = SamplingParams(max_tokens=4, seed=3)
BODY: dict[str, Any] = {"model": "fake", "prompt": "lift", "max_tokens": 4, "seed": 3}


def send_requests(*bodies: dict[str, Any]) -> Any:
    async def scenario() -> list[Any]:
        async with open_server(fake_service()) as server:
            return await asyncio.gather(*[server.http.post(COMPLETIONS, json=body) for body in bodies])

    return run(scenario())


def texts_of(response: Any) -> dict[int, str]:
    """Return the text of each choice of a full or streamed response."""
    if response.headers["content-type"] == "application/json":
        return {choice["index"]: choice["text"] for choice in response.json()["choices"]}
    *chunks, last_event = events(response.text)
    assert last_event == "[DONE]"
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def test_text_and_ids_are_the_same_prompt() -> None:
    for response in send_requests(BODY, {**BODY, "prompt": list(b"lift")}, {**BODY, "stream": True}):
        assert texts_of(response) == {0: text_of("lift", PARAMS)}


def test_without_max_tokens_a_completion_has_sixteen_tokens_or_as_many_as_fit() -> None:
    body = {name: value for name, value in BODY.items() if name != "max_tokens"}
    longest = "x" * (FAKE.max_model_len - 5)
    responses = send_requests(
        body, {**body, "max_tokens": None}, {**body, "stream": True}, {**body, "max_tokens": 20},
        {**body, "prompt": longest}, {**body, "prompt": longest, "max_tokens": 16},
    )  # fmt: skip
    texts = [texts_of(response)[0] for response in responses[:5]]
    assert texts[:3] == [text_of("lift", SamplingParams(max_tokens=16, seed=3))] * 3
    assert [len(text) for text in texts] == [16, 16, 16, 20, 5]
    assert responses[5].json()["error"]["code"] == "context_length_exceeded"


def test_an_output_may_fill_the_context() -> None:
    body = {name: value for name, value in BODY.items() if name != "max_tokens"} | {"ignore_eos": True}
    filled, limited = send_requests({**body, "fill_context": True}, {**body, "fill_context": True, "max_tokens": 3})
    usage = filled.json()["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == FAKE.max_model_len
    assert filled.json()["choices"][0]["finish_reason"] == "length" and len(texts_of(limited)[0]) == 3


def test_several_prompts_are_numbered_through() -> None:
    body = {**BODY, "prompt": ["lift", "rope"], "n": 2}
    full, stream, ids = send_requests(
        body, {**body, "stream": True}, {**body, "prompt": [list(b"lift"), list(b"rope")]}
    )
    result = texts_of(full)
    assert (
        list(result) == [0, 1, 2, 3] and result[0] == text_of("lift", PARAMS) and result[2] == text_of("rope", PARAMS)
    )
    assert texts_of(stream) == texts_of(ids) == result
    assert full.json()["usage"]["prompt_tokens"] == 8 and full.json()["usage"]["completion_tokens"] == 16


def test_the_error_of_one_prompt_among_several_says_which() -> None:
    long = "x" * FAKE.max_model_len
    bodies: list[tuple[Any, str]] = [
        (["a", "b", long], "prompt[2]: prompt has"), (["a", ""], "prompt[1]: prompt must not contain an empty text"),
        ([[1], []], "prompt[1]: "), ([[1], [FAKE.vocab_size]], "prompt[1]: prompt: token id"), ([long], "prompt has"),
        ([[1], ["a"]], "prompt[1]: prompt must contain only token ids"), (["a", [1]], "prompt[1]: prompt must be text"),
    ]  # fmt: skip
    responses = send_requests(*({**BODY, "prompt": prompt} for prompt, _ in bodies))
    for response, (_, begin) in zip(responses, bodies, strict=True):
        error = response.json()["error"]
        assert response.status_code == 400 and error["param"] == "prompt" and error["message"].startswith(begin)


def test_the_prompt_is_echoed() -> None:
    for response in send_requests({**BODY, "echo": True}, {**BODY, "echo": True, "stream": True}):
        assert texts_of(response) == {0: "lift" + text_of("lift", PARAMS)}


def test_scores_lie_side_by_side() -> None:
    [response, stream] = send_requests(
        *({**BODY, "echo": True, "logprobs": 2, "stream": stream} for stream in (False, True))
    )
    logprobs = response.json()["choices"][0]["logprobs"]
    expected = "lift" + text_of("lift", PARAMS)
    assert logprobs["tokens"] == list(expected) and logprobs["text_offset"] == list(range(8))
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    joined: dict[str, list[Any]] = {name: [] for name in logprobs}
    for chunk in events(stream.text)[:-1]:
        for choice in chunk["choices"]:
            for name, values in (choice["logprobs"] or {}).items():
                joined[name] += values
    assert joined == logprobs


def test_the_best_of_several_comes_back() -> None:
    [response] = send_requests({**BODY, "best_of": 4, "n": 2, "temperature": 1.0})
    assert len(response.json()["choices"]) == 2 and response.json()["usage"]["completion_tokens"] == 16


def test_one_bad_prompt_of_several_is_refused_as_a_whole() -> None:
    [response] = send_requests({**BODY, "prompt": [[1, 2], [3, 128]]})
    assert response.status_code == 400 and response.json()["error"]["code"] == "token_out_of_range"


def test_scores_go_on_where_another_stream_ended() -> None:
    """The stream does not repeat the prompt, and offsets count from the start of the whole text."""
    body = {"model": "fake", "prompt": "lift", "max_tokens": 8, "seed": 4, "echo": True, "logprobs": 2}
    [full] = send_requests({**body, "return_token_ids": True})
    choice = full.json()["choices"][0]
    [response] = send_requests({**body, "stream": True, "resume": [choice["token_ids"][:3]]})
    result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in events(response.text)[:-1]:
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            result[name] += values
    assert result["text_offset"] == choice["logprobs"]["text_offset"][4 + 3 :] == [7, 8, 9, 10, 11]
    assert result["tokens"] == choice["logprobs"]["tokens"][7:]
