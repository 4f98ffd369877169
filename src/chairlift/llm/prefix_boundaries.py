"""prefix_boundaries: where a later prompt of the same conversation may differ from this one.

    prompt of this turn    <user> Hi <end> <assistant> <think>
    prompt of the next     <user> Hi <end> <assistant> Hello! <end> <user> ...
                           ──────────────▲

A template that begins the answer with reasoning, and drops old reasoning, makes the next prompt differ behind the last
message. Models whose layers keep a state save it at the last block before this place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.tokenizer import Tokenizer


def prefix_boundaries(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None, options: RenderOptions, ids: Sequence[int],
) -> tuple[int, ...]:  # fmt: skip
    """Return GenerateRequest.prefix_boundaries of a prompt that a template has rendered.

    Args:
        template: of the model.
        tokenizer: of the model.
        messages: of the conversation, as template_input returns them.
        tools: the same for tools.
        options: of the rendering.
        ids: tokens of the prompt.
    """
    if not options.has_generation_prompt:
        return ()
    try:
        ended = template.render_checked(messages, tools=tools, options=replace(options, add_generation_prompt=False))
    except InvalidRequest:  # a template may refuse to end so
        return ()
    count = 0
    for mine, other in zip(ids, tokenizer.encode_chat(ended), strict=False):
        if mine != other:
            break
        count += 1
    return (count,) if 0 < count < len(ids) else ()
