"""Chat options: the operator's template, its variables and the reasoning format, from Python and as options."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chairlift import LLM, AsyncLLM, SamplingParams, StructuredOutput
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.llm.build import prepare
from chairlift.llm.builtin_models import RANDOM
from chairlift.llm.text_service import TextService
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.reasoning_formats import ReasoningState
from support_services import fake_service, tokens_of

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{% if add_generation_prompt %}a="
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
PARAMS = SamplingParams(max_tokens=4, seed=3)
HELLO = [{"role": "user", "content": "hello"}]
BEGUN = [*HELLO, {"role": "assistant", "content": "Hi, "}]
OPTIONS: list[tuple[list[dict[str, str]], dict[str, Any], str]] = [
    (HELLO, {}, "user=hello;a="),
    (HELLO, {"chat_template_kwargs": {"enable_thinking": False}}, "user=hello;a=<think></think>"),
    (HELLO, {"chat_template_kwargs": {"enable_thinking": True}}, "user=hello;a="),
    (HELLO, {"add_generation_prompt": False}, "user=hello;"),
    (BEGUN, {"continue_final_message": True}, "user=hello;assistant=Hi, "),
    (BEGUN, {"continue_final_message": True, "add_generation_prompt": False}, "user=hello;assistant=Hi, "),
]


@pytest.fixture
def service() -> Iterator[TextService]:
    service = fake_service()
    assert service.tokenizer is not None
    yield replace(service, chat_template=ChatTemplate({"default": TEMPLATE}, service.tokenizer))
    service.client.close()


@pytest.mark.parametrize(("messages", "options", "prompt"), OPTIONS)
def test_chat_renders_with_its_options(
    service: TextService, messages: list[dict[str, str]], options: dict[str, Any], prompt: str
) -> None:
    (result,) = LLM.from_service(service).chat(messages, PARAMS, use_tqdm=False, **options)
    assert result.prompt == prompt and result.outputs[0].token_ids == tokens_of(prompt, PARAMS)

    async def stream() -> list[int]:
        events = AsyncLLM.from_service(service).chat(messages, PARAMS, **options)
        return [token async for event in events for token in event.token_ids]

    assert asyncio.run(stream()) == tokens_of(prompt, PARAMS)


@pytest.mark.parametrize(("messages", "options", "message"), [
    (HELLO, {"continue_final_message": True}, "needs a final message of the assistant"),
    (BEGUN, {"continue_final_message": True, "add_generation_prompt": True}, "cannot be combined"),
    (HELLO, {"chat_template_kwargs": {"messages": []}}, "messages must be a field of the request"),
    (HELLO, {"chat_template_kwargs": {"tokenize": False}}, "tokenize cannot be set"),
    (HELLO, {"chat_template_kwargs": ["x"]}, "must be an object, got list"),
    (HELLO, {"chat_template_kwargs": {"enable_thinking": object()}}, "must be JSON data"),
])  # fmt: skip
def test_impossible_options_raise_before_anything_is_queued(
    service: TextService, messages: list[dict[str, str]], options: dict[str, Any], message: str
) -> None:
    llm = LLM.from_service(service)
    with pytest.raises(InvalidRequest, match=message):
        llm.chat(messages, PARAMS, use_tqdm=False, **options)
    assert llm.scheduler_state()["steps"] == 0


def test_a_variable_that_the_template_does_not_read_is_logged(
    service: TextService, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        service.rendering({"thinking": True, "enable_thinking": True})
    assert [record.message for record in caplog.records] == [
        "the chat template does not read thinking of chat_template_kwargs"
    ]


@pytest.mark.parametrize(("rendering", "messages", "state"), [
    (RenderOptions(), HELLO, ReasoningState.NOT_STARTED),
    (RenderOptions(variables={"enable_thinking": False}), HELLO, ReasoningState.ENDED),
    (RenderOptions(add_generation_prompt=False), HELLO, ReasoningState.NOT_STARTED),
    (RenderOptions(continue_final_message=True), BEGUN, ReasoningState.ENDED),
    (RenderOptions(continue_final_message=True), [{"role": "assistant", "content": "<think>I"}], ReasoningState.OPEN),
])  # fmt: skip
def test_structure_has_the_reasoning_before_it_that_the_prompt_leaves_open(
    service: TextService, rendering: RenderOptions, messages: list[dict[str, str]], state: ReasoningState
) -> None:
    params = replace(PARAMS, structured=StructuredOutput(choice=("yes", "no")))
    processor = service.prepare_chat(messages, params, rendering=rendering)
    structured = processor.request.params.structured
    assert processor.reasoning_state is state and structured is not None
    prefix = structured.reasoning_prefix
    assert (prefix is None) == (state is ReasoningState.ENDED)
    assert prefix is None or prefix.is_open == (state is ReasoningState.OPEN)
    completed = service.prepare_completion("user=hello;a=", params).request.params.structured
    assert completed is not None and completed.reasoning_prefix is None, "a prompt is not rendered, so it tells nothing"


# -- options -----------------------------------------------------------------------------------------------------------


def rendered(**options: Any) -> str:
    """Return the prompt of HELLO with these options and a model without a folder."""
    prepared = prepare(RANDOM, options, starts=False)
    assert prepared.chat_template is not None
    return prepared.chat_template.render(HELLO).text


def test_a_template_file_replaces_the_models_own(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    assert rendered(chat_template=str(file)) == "user=hello;a="
    defaults = {"enable_thinking": False}
    assert rendered(chat_template=str(file), default_chat_template_kwargs=defaults).endswith("a=<think></think>")
    prepared = prepare(RANDOM, {"chat_template": str(file), "reasoning_parser": "none"}, starts=False)
    assert prepared.chat_template is not None and prepared.chat_template.reasoning_format is None


def test_a_bad_template_file_ends_the_start_with_its_name_and_line(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}\n{{ m.role }}\n{% end %}")
    with pytest.raises(ConfigError, match=rf"chat_template {file}: .* is not valid Jinja at line 3: "):
        rendered(chat_template=str(file))
    file.write_bytes(b"\xff\xfe{{")
    with pytest.raises(ConfigError, match=rf"chat_template {file} cannot be read: "):
        rendered(chat_template=str(file))
    with pytest.raises(ConfigError, match=r"none\.jinja cannot be read: No such file"):
        rendered(chat_template=str(tmp_path / "none.jinja"))


@pytest.mark.parametrize(("options", "message"), [
    ({"default_chat_template_kwargs": {"messages": []}}, r"default_chat_template_kwargs\.messages must be a field"),
    ({"default_chat_template_kwargs": {"bos_token": "x"}}, r"default_chat_template_kwargs\.bos_token cannot be set"),
    ({"reasoning_parser": "qwen9"}, "reasoning_parser must be one of auto, none, qwen3"),
])  # fmt: skip
def test_bad_chat_options_end_the_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        rendered(**options)
    assert caught.value.details["option"] in options


def test_a_default_that_the_template_does_not_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rendered(default_chat_template_kwargs={"enable_thinking": False})
    assert "the chat template does not read enable_thinking of default_chat_template_kwargs" in caplog.text
