"""ChatTemplate: of several templates in a tokenizer's folder, the request's tools choose one by name."""

from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.text.chat_template import ChatTemplate
from support_text import build_tokenizer, save_tokenizer, tokenizer_of

TOOL = {"type": "function", "function": {"name": "höhe", "parameters": {"type": "object", "properties": {"a<b": {}}}}}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_several_templates_are_chosen_by_name(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    template = ChatTemplate.load(save_tokenizer(tmp_path, *build_tokenizer("qwen"), templates), tokenizer_of("qwen"))
    assert template.render(user("a")).text == "plain"
    assert template.render(user("a"), tools=[TOOL]).text == "tools"
    with pytest.raises(InvalidRequest, match=r"\['rag'\], but none is named 'default'"):
        ChatTemplate({"rag": ""}, tokenizer_of("qwen")).render(user("a"))
