"""with_stand_ins: markers of the server become special tokens in a prompt, and those that users spell stay text."""

from chairlift.text.marker_stand_ins import with_stand_ins, without_stand_ins
from support_chat_formats import chat_template_of, tokenizer_of

MARKER = "<|tool_call_start|>"


def test_markers_come_back() -> None:
    for text in (f"{MARKER}[f()]", "[TOOL_CALLS]f[ARGS]", "no marker", "<|a|><|b|>"):
        hidden = with_stand_ins(text)
        assert without_stand_ins(hidden) == text and (hidden == text) == (text == "no marker")
    assert MARKER not in with_stand_ins(MARKER)


def test_only_stand_ins_become_special_tokens_in_a_prompt() -> None:
    template, tokenizer = chat_template_of("lfm-2"), tokenizer_of("lfm-2")
    special = tokenizer.special_tokens[MARKER]
    for content, num_special, num_spelled in (
        (MARKER, 0, 1), (with_stand_ins(MARKER), 1, 1), (f"{with_stand_ins(MARKER)} {MARKER}", 1, 2),
    ):  # fmt: skip
        prompt = template.render_checked([{"role": "user", "content": "a"}, {"role": "assistant", "content": content}])
        assert prompt.text.count(MARKER) == num_spelled
        assert tokenizer.encode_chat(prompt).count(special) == num_special, content


def test_text_with_another_secret_is_no_stand_in() -> None:
    other = f"\U0010e000{'0' * 32}:{MARKER.encode().hex()}\U0010e001"
    assert without_stand_ins(other) == other
