"""prompt_prefix: what shares a prefix and what does not, the next turn, and the number of hash calls."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import characters, integers, lists, sampled_from, text, tuples

import chairlift.core.block_hash as block_hash_module
import chairlift.router.prompt_prefix_and_length as prompt_prefix_module
from chairlift.core.block_hash import BlockHash, extend_block_hashes, root_hash
from chairlift.router.prompt_prefix_and_length import (
    BLOCK_TOKENS,
    BYTES_PER_TOKEN,
    PromptPrefix,
    count_prompt_tokens,
    prompt_prefix,
)
from support_shares import for_each

LONG = "Trains leave at ten past each hour. " * 40
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
Body = dict[str, Any]


def prefix(body: Body, **scope: str) -> PromptPrefix:
    return prompt_prefix(body, **{"model": "m", **scope})


def chat(*contents: object, **fields: object) -> Body:
    """Return a chat body whose messages come from user and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    return {"messages": messages, **fields}


def num_shared(left: Body, right: Body) -> int:
    pairs = zip(prefix(left).hashes, prefix(right).hashes, strict=False)
    return sum(one == other for one, other in pairs)


# -- what shares a prefix ------------------------------------------------------------------------------------------


def test_a_prompt_has_a_hash_for_each_full_chunk_and_its_estimated_tokens() -> None:
    body = {"prompt": "x" * 6000}
    result = prefix(body)  # chunks end at 256, 512 ... 4096, 5120 bytes; one byte is the quote before the text
    assert result.token_counts == [64 * chunk for chunk in range(1, 17)] + [1280]
    assert len(result.hashes) == 17 and result.num_tokens == 1501
    assert result.tail == b"x" * (6001 - 5120)
    assert len(set(result.hashes)) == 17


@pytest.mark.parametrize("body", [
    {"prompt": ""}, {"prompt": LONG + "é"}, {"prompt": list(range(300))}, {"prompt": [LONG, "b"]},
    {"prompt": [[1, 2], [3] * 200]}, {"prompt": []}, {"messages": []}, chat(LONG, "é", [{"type": "text", "text": "x"}]),
    chat(LONG, tools=[TOOL], documents=["d"]), {},
])  # fmt: skip
def test_tokens_are_counted_without_hashes_as_with_them(body: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    num_tokens = prefix(body).num_tokens
    assert count_hashing(monkeypatch, lambda: count_prompt_tokens(body)) == (0, 0)
    assert count_prompt_tokens(body) == num_tokens


@for_each("size", [0, 254, 255, 256, 4095, 5119, 5120, 65535, 69631, 100_000])
def test_a_longer_prompt_begins_with_the_hashes_of_a_shorter_one(size: int) -> None:
    short, long = prefix({"prompt": "é" * (size // 2)}), prefix({"prompt": "é" * (size // 2) + "z" * 9000})
    assert long.hashes[: len(short.hashes)] == short.hashes
    assert len(long.hashes) > len(short.hashes)
    assert len(long.token_counts) == len(long.hashes)


def test_a_conversation_that_grows_by_a_turn_keeps_its_hashes() -> None:
    first, second = chat(LONG, LONG, LONG), chat(LONG, LONG, LONG, "an answer", "more")
    assert num_shared(first, second) == len(prefix(first).hashes) >= 10


def test_conversations_with_one_beginning_share_it_and_no_more() -> None:
    assert num_shared(chat(LONG, "a" * 5000), chat(LONG, "b" * 5000)) == (len(LONG) + 30) // 256


def test_the_same_text_behind_another_beginning_has_other_hashes() -> None:
    assert num_shared(chat("x", LONG), chat("y", LONG)) == 0


@for_each(
    "other",
    [
        {"tools": [TOOL]},
        {"functions": [TOOL["function"]]},
        {"documents": [{"text": "d"}]},
        {"chat_template": "{{ messages }}"},
        {"cache_salt": "s"},
        {"tools": [TOOL], "cache_salt": "s"},
    ],
)
def test_tools_documents_template_and_salt_are_part_of_the_root(other: Body) -> None:
    assert num_shared(chat(LONG), chat(LONG, **other)) == 0
    assert num_shared(chat(LONG, **other), chat(LONG, **other)) > 0


@pytest.mark.parametrize("body", [chat(LONG), {"prompt": LONG}, {"prompt": list(range(300))}])
def test_model_adapter_and_tenant_are_part_of_the_root(body: Body) -> None:
    scopes = [{}, {"model": "n"}, {"adapter": "a"}, {"tenant": "a"}, {"adapter": "a", "tenant": "b"}]
    hashes = {each for scope in scopes for each in prefix(body, **scope).hashes}
    assert len(hashes) == len(scopes) * len(prefix(body).hashes)


def test_a_chat_and_a_completion_share_nothing() -> None:
    text_of_chat = json.dumps(chat(LONG)["messages"], separators=(",", ":"))
    assert not {*prefix(chat(LONG)).hashes} & {*prefix({"prompt": text_of_chat}).hashes}


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}, {"temperature": 1.0, "stream": True}, {"n": 2}])
def test_what_does_not_change_the_prompt_changes_no_hash(fields: Body) -> None:
    assert prefix(chat(LONG)).hashes == prefix(chat(LONG, **fields)).hashes


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@for_each(
    ("message", "same"),
    [
        ({"role": "user", "content": LONG}, {"content": LONG, "role": "user"}),
        ({"role": "user", "content": LONG}, {"role": "user", "content": [{"type": "text", "text": LONG}]}),
        ({"role": "assistant", "content": LONG},
         {"role": "assistant", "content": LONG, "refusal": None, "annotations": [], "tool_calls": None}),
        ({"role": "assistant", "content": LONG}, {"role": "assistant", "content": LONG, "reasoning_content": "Hm."}),
        ({"role": "assistant", "tool_calls": [CALL]}, {"role": "assistant", "content": "", "tool_calls": [CALL]}),
        ({"role": "assistant", "tool_calls": [CALL]}, {"role": "assistant", "tool_calls": [CALL | {"index": 0}]}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
    ],
)  # fmt: skip
def test_two_spellings_of_a_message_are_one(message: Body, same: Body) -> None:
    end = {"role": "user", "content": LONG}
    assert num_shared({"messages": [message, end]}, {"messages": [same, end]}) >= 4


@for_each(
    "change",
    [
        {"content": LONG[1:]}, {"role": "system"}, {"name": "n"}, {"tool_calls": [CALL]}, {"tool_call_id": "1"},
        {"content": [{"type": "text", "text": LONG}, {"type": "text", "text": "x"}]},
        {"content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
    ],
)  # fmt: skip
def test_what_a_model_reads_changes_the_hashes(change: Body) -> None:
    message, end = {"role": "user", "content": LONG}, {"role": "user", "content": LONG}
    left, right = prefix({"messages": [message, end]}), prefix({"messages": [message | change, end]})
    assert left.hashes[-1] not in right.hashes


# -- token ids -----------------------------------------------------------------------------------------------------


def test_token_ids_are_hashed_as_the_engine_hashes_them() -> None:
    ids = list(range(3 * BLOCK_TOKENS + 7))
    result = prefix({"prompt": ids, "cache_salt": "s"}, model="m", adapter="a", tenant="t")
    hashes: list[BlockHash] = []
    extend_block_hashes(hashes, root_hash("m", "a", "t", "s"), ids, BLOCK_TOKENS)
    assert result.hashes == tuple(hashes)
    assert list(result.token_counts) == [BLOCK_TOKENS, 2 * BLOCK_TOKENS, 3 * BLOCK_TOKENS]
    assert (result.num_tokens, result.tail) == (len(ids), tuple(ids[-7:]))


def test_of_several_prompts_the_first_is_hashed_and_all_are_counted() -> None:
    ids = list(range(300))
    many = prefix({"prompt": [ids, [1, 2]]})
    assert (many.hashes, many.num_tokens) == (prefix({"prompt": ids}).hashes, 302)
    texts = prefix({"prompt": [LONG, "x" * 99]})
    assert (texts.hashes, texts.num_tokens) == (prefix({"prompt": LONG}).hashes, len(LONG) // BYTES_PER_TOKEN + 1 + 25)


# -- the next turn -------------------------------------------------------------------------------------------------


def answered(body: Body, answer: Any) -> tuple[bytes, ...]:
    return prefix(body).extended(answer)


@for_each("answer", ["", "ok", 'a "quoted" answer\nof lines é 😀', LONG, LONG * 100])
@for_each("question", ["hi", LONG, LONG * 60])
def test_the_next_turn_begins_with_the_hashes_of_question_and_answer(question: str, answer: str) -> None:
    following = prefix(chat(question, answer, "thanks")).hashes
    hashes = answered(chat(question), answer)
    assert following[: len(hashes)] == hashes
    assert len(following) - len(hashes) <= 1, "the rest is the new message and less than a chunk"


def test_an_answer_with_tool_calls_is_known_in_the_next_turn() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL | {"index": 0}], "reasoning": "Hm."}
    sent_back = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": LONG}
    following = {"messages": [*chat(LONG)["messages"], sent_back, result]}
    hashes = answered(chat(LONG), message)
    assert prefix(following).hashes[: len(hashes)] == hashes


@pytest.mark.full
@given(
    lists(tuples(sampled_from(["user", "assistant", "system"]), text(max_size=700)), min_size=1, max_size=4),
    text(characters(codec="utf-8"), max_size=3000),
)
def test_any_conversation_is_extended_as_if_it_were_hashed_at_once(turns: list[tuple[str, str]], answer: str) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    hashes = answered({"messages": messages}, answer)
    whole = prefix({"messages": [*messages, {"role": "assistant", "content": answer}]}).hashes
    assert hashes == whole


@given(text(characters(codec="utf-8"), max_size=2000), text(characters(codec="utf-8"), max_size=2000))
def test_a_text_is_extended_as_if_it_were_hashed_at_once(prompt: str, answer: str) -> None:
    assert answered({"prompt": prompt}, answer) == prefix({"prompt": prompt + answer}).hashes


@given(lists(integers(0, 2**31), max_size=400), lists(integers(0, 2**31), max_size=400))
def test_token_ids_are_extended_as_if_they_were_hashed_at_once(prompt: list[int], answer: list[int]) -> None:
    if prompt:
        assert answered({"prompt": prompt}, answer) == prefix({"prompt": prompt + answer}).hashes


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"prompt": list(range(300))}, "text"),
        ({"prompt": list(range(300))}, [1.5] * 300),
        ({"prompt": LONG}, [1, 2, 3] * 300),
        (chat(LONG), [1, 2, 3] * 300),
        (chat(LONG), "\ud800" * 3000),
    ],
)
def test_an_answer_of_another_kind_leaves_the_hashes(body: Body, answer: Any) -> None:
    assert answered(body, answer) == prefix(body).hashes != ()


# -- bodies that replicas reject -----------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "body",
    [
        {}, {"prompt": None}, {"prompt": []}, {"prompt": 7}, {"prompt": {"a": 1}}, {"prompt": [None]}, {"prompt": [[]]},
        {"prompt": nested(900)},
        {"prompt": [1, "a"] * 200}, {"prompt": [1, 2.5] * 200}, {"prompt": [2**63] * 200}, {"prompt": [-(2**70)] * 200},
        {"prompt": "\ud800" * 400}, {"messages": None}, {"messages": "hi"}, {"messages": ["hi"]}, {"messages": [None]},
        chat("\ud800" * 400), chat({1: 2}), chat(2**70), chat(nested(300)),
        {"messages": [{"role": "user", "content": LONG, "tool_calls": 7, "name": nested(400)}]},
    ],
    ids=lambda body: str(body)[:40],
)  # fmt: skip
def test_a_body_without_a_readable_prompt_has_no_hashes_and_no_error(body: Body) -> None:
    assert prefix(body).hashes == ()
    assert count_prompt_tokens(body) >= 0


@pytest.mark.parametrize("salt", [None, 7, ["s"], ""])
def test_a_salt_that_is_no_text_counts_as_none(salt: object) -> None:
    assert prefix(chat(LONG, cache_salt=salt)).hashes == prefix(chat(LONG)).hashes


def test_an_empty_conversation_has_no_hashes() -> None:
    assert prefix({"messages": []}).hashes == ()


# -- cost ----------------------------------------------------------------------------------------------------------


def count_hashing(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> tuple[int, int]:
    """Return how many times a function hashes, and how many bytes in all."""
    sizes: list[int] = []

    def counted(data: bytes) -> Any:
        sizes.append(len(data))
        return sha256(data)

    for module in (prompt_prefix_module, block_hash_module):
        monkeypatch.setattr(module, "sha256", counted)
    run()
    return len(sizes), sum(sizes)


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (chat("x" * 100_000), 90),
        (chat(*["x" * 100] * 1000), 100),
        (chat("x" * 50_000, tools=[TOOL] * 500), 90),
        ({"prompt": "x" * 100_000}, 90),
        ({"prompt": [12345] * 17_000}, 17_000 // BLOCK_TOKENS + 2),
    ],
)
def test_a_prompt_of_100_kb_takes_about_a_hundred_hashes_and_reads_each_byte_once(
    monkeypatch: pytest.MonkeyPatch, body: Body, limit: int
) -> None:
    calls, num_bytes = count_hashing(monkeypatch, lambda: prefix(body))
    assert calls <= limit
    assert num_bytes <= 145_000


def test_an_answer_hashes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prefix(chat("x" * 100_000))
    calls, num_bytes = count_hashing(monkeypatch, lambda: prompt.extended("y" * 8000))
    assert calls <= 3
    assert num_bytes <= 13_000
