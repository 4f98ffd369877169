"""prefix_boundaries: the end of the last message, where reasoning of the answer begins behind it."""

import pytest

from chairlift.llm.prefix_boundaries import prefix_boundaries
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.chat_template import ChatTemplate, RenderOptions

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
THINKS = TURNS + "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
REFUSES = TURNS + "{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}"
MESSAGES = [{"role": "user", "content": "Hi"}]


def found(source: str, options: RenderOptions | None = None) -> tuple[str, tuple[int, ...]]:
    """Return the prompt and its boundaries in bytes."""
    tokenizer, options = ByteTokenizer(), options or RenderOptions()
    template = ChatTemplate({"default": source}, tokenizer)
    prompt = template.render_checked(MESSAGES, options=options)
    ids = tokenizer.encode_chat(prompt)
    return prompt.text, prefix_boundaries(template, tokenizer, MESSAGES, None, options, ids)


def test_the_boundary_is_the_end_of_the_last_message() -> None:
    prompt, boundaries = found(THINKS)
    assert prompt == "[user]Hi[assistant]<think>"
    assert [prompt.encode()[:place] for place in boundaries] == [b"[user]Hi"]


@pytest.mark.parametrize(
    ("source", "options"),
    [(TURNS, None), (REFUSES, None), (THINKS, RenderOptions(add_generation_prompt=False))],
    ids=["nothing follows", "template refuses", "no generation prompt"],
)
def test_there_may_be_no_boundary(source: str, options: RenderOptions | None) -> None:
    assert found(source, options)[1] == ()
