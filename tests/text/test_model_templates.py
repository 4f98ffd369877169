"""Templates of well-known models: prompts equal transformers', and the calls that each template writes are read back.

The files in chat_templates/ are our own; each does what the published template of that model does.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pytest
from transformers import PreTrainedTokenizerFast

from chairlift.core.errors import InvalidRequest
from chairlift.text.chat_messages import ChatMessages
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.template_input import template_input
from chairlift.text.tokenizer import HFTokenizer
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import TOOL_FORMATS, detect_tool_format
from support_text import byte_level, save_tokenizer
from support_tool_formats import halves, read

FOLDER = Path(__file__).parent / "chat_templates"


class Model(NamedTuple):
    """A model's special tokens, its format of calls, and the texts around an answer in its history."""

    name: str
    tool_format: str
    before_answer: str
    after_answer: str
    special_tokens: tuple[str, ...]
    num_calls: int = 2
    """Calls that its template can write in one message; 0 where it writes strings that cannot be read back."""


LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
LLAMA_HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
ADDED = {"<tool_call>", "</tool_call>", "<think>", "</think>"}
"""Added tokens that are not special: a tokenizer's decoder writes them always."""
CHATML = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
LFM = ("<|startoftext|>", "<|im_end|>", "<|im_start|>", "<|tool_call_start|>", "<|tool_call_end|>",
       "<|tool_response_start|>", "<|tool_response_end|>")  # fmt: skip
MODELS = {
    model.name: model
    for model in (
        Model("llama-3.1", "llama3", LLAMA_HEADER, "<|eot_id|>", LLAMA, num_calls=1),
        Model("llama-3.2", "llama3", LLAMA_HEADER, "<|eot_id|>", LLAMA, num_calls=1),
        Model("qwen-2.5", "hermes", "<|im_start|>assistant\n", "<|im_end|>\n", CHATML),
        Model("qwen-3", "hermes", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|im_end|>\n", CHATML),
        Model("mistral", "mistral", "[/INST]", "</s>", ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]")),
        Model("gemma-3", "generic", "<start_of_turn>model\n", "<end_of_turn>\n",
              ("<bos>", "<start_of_turn>", "<end_of_turn>")),
        Model("phi-4-mini", "generic", "<|assistant|>", "<|end|><|im_end|>",
              ("<|im_end|>", "<|end|>", "<|assistant|>", "<|user|>", "<|system|>")),
        Model("deepseek-r1-distill", "generic", "<｜Assistant｜>", "<｜end▁of▁sentence｜>",
              ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")),
        Model("glm-4", "generic", "<|assistant|>\n", "", ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>")),
        Model("glm-4.5", "glm", "<|assistant|>\n<think></think>", "",
              ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<tool_call>", "</tool_call>", "<think>", "</think>")),
        Model("granite-3.3", "granite", "<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n",
              ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>")),
        Model("smollm-3", "hermes", "<|im_start|>assistant\n", "<|im_end|>\n", CHATML),
        Model("gpt-oss", "harmony", "<|start|>assistant", "<|call|>",
              ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"), num_calls=1),
        Model("mistral-small", "mistral", "[/INST]", "</s>",
              ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[CALL_ID]",
               "[ARGS]")),
        Model("qwen-3.5", "qwen3-coder", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|im_end|>\n", CHATML),
        Model("deepseek-v3.2", "deepseek-v3.2", "<｜Assistant｜></think>", "<｜end▁of▁sentence｜>",
              ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "｜DSML｜")),
        Model("command-r7b", "command-a", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
              ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>",
               "<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")),
        Model("gemma-2", "generic", "<start_of_turn>model\n", "<end_of_turn>\n",
              ("<bos>", "<start_of_turn>", "<end_of_turn>")),
        Model("gemma-4", "gemma4", "<|turn>model\n", "<|tool_response>",
              ("<bos>", "<turn|>", "<|turn>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>",
               "<|think|>", "<|tool_response>", "<tool_response|>", "<|tool>", "<tool|>")),
        Model("qwen-3-coder", "qwen3-coder", "<|im_start|>assistant", "<|im_end|>\n", CHATML),
        Model("qwen-3-next-thinking", "hermes", "<|im_start|>assistant\n", "<|im_end|>\n", CHATML),
        Model("granite-4", "hermes", "<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n",
              ("<|start_of_role|>", "<|end_of_text|>", "<|end_of_role|>", "<tool_call>", "</tool_call>")),
        Model("lfm-2", "pythonic", "<|im_start|>assistant\n", "<|im_end|>\n", LFM),
        Model("lfm-2.5", "pythonic", "<|im_start|>assistant\n", "<|im_end|>\n", LFM, num_calls=0),
        Model("olmo-2", "generic", "<|assistant|>\n", "<|endoftext|>", ("<|pad|>", "<|endoftext|>")),
        Model("olmo-3", "pythonic", "<|im_start|>assistant\n", "<|im_end|>", CHATML),
        Model("olmo-3-think", "pythonic", "<|im_start|>assistant\n", "<|im_end|>", CHATML),
        Model("ministral-3", "mistral", "[/INST]", "</s>",
              ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]",
               "[THINK]", "[/THINK]")),
        Model("mixtral", "generic", " [/INST] ", "</s>", ("<s>", "</s>")),
        Model("phi-3", "generic", "<|assistant|>\n", "<|end|>\n", ("<s>", "<|endoftext|>", "<|end|>", "<|assistant|>")),
        Model("phi-4", "generic", "<|im_start|>assistant<|im_sep|>", "<|im_end|>", (*CHATML[:2], "<|im_sep|>")),
        Model("phi-4-reasoning", "generic", "<|im_start|>assistant<|im_sep|>", "<|im_end|>",
              (*CHATML[:2], "<|im_sep|>")),
        Model("command-r", "command-r", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
              ("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>")),
    )
}  # fmt: skip

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Höhe & Tiefe <eines> Orts",
            "parameters": {
                "type": "object",
                "properties": {
                    "x": {"type": "integer", "description": "Meter", "default": 3},
                    "s": {"type": "string", "enum": ["a", "b"]},
                    "l": {"type": "array", "items": {"type": "string"}},
                    "o": {"type": "object", "properties": {"k": {"type": ["string", "null"]}}, "required": ["k"]},
                },
                "required": ["x"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "g", "description": "Nichts", "parameters": {"type": "object", "properties": {}}},
    },
]
ARGUMENTS = {"x": 1, "s": 'a"}<b>\n\\', "l": ["é", "}]"], "o": {"k": None}}
CALLS = [
    {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}},
    {"id": "123456789", "type": "function", "function": {"name": "g", "arguments": {}}},
]
USER, SYSTEM = {"role": "user", "content": " Wie hoch?\n"}, {"role": "system", "content": "Kurz. "}
ANSWER = {"role": "assistant", "content": " Hoch 😀 \n"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHoch"}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": '{"m": 3}'}


def calling(num_calls: int, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": CALLS[:num_calls], **fields}


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, {"role": "user", "content": "Wo?"}],
    "answered": [USER, ANSWER],
    "thoughts": [USER, THOUGHT, USER, THOUGHT],
    "reasoning": [USER, {**ANSWER, "reasoning_content": "\nhm\n"}],
    "thinking": [USER, {**ANSWER, "thinking": "hm"}],
    "call": [USER, calling(1)],
    "call with text": [USER, calling(1, content="Ich sehe nach.")],
    "calls": [USER, calling(2)],
    "result": [SYSTEM, USER, calling(1), RESULT],
    "results": [USER, calling(2), RESULT, {**RESULT, "tool_call_id": "123456789", "name": "g"}, ANSWER, USER],
    "no user": [SYSTEM],
    "two users": [USER, USER],
    "flags": [{"role": "system", "content": "Kurz /no_think"}, USER],
    "overridden": [{"role": "system", "content": "Kurz /system_override /think"}, USER],
}
SWITCHES = {
    "qwen-3": "enable_thinking", "qwen-3.5": "enable_thinking", "deepseek-v3.2": "thinking",
    "smollm-3": "enable_thinking", "glm-4.5": "enable_thinking", "granite-3.3": "thinking",
    "gemma-4": "enable_thinking",
}  # fmt: skip


class Both(NamedTuple):
    """Our template, transformers' tokenizer with the same one, and our tokenizer."""

    template: ChatTemplate
    reference: PreTrainedTokenizerFast
    tokenizer: HFTokenizer

    @property
    def tool_format(self) -> ToolFormat:
        takes_tools = self.template.abilities(with_tools=True).tools
        return detect_tool_format(self.template.text, self.tokenizer.special_tokens, takes_tools=takes_tools)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def loaded(name: str) -> Both:
        model = MODELS[name]
        bos, eos = model.special_tokens[0], model.special_tokens[1]
        if name == "phi-4-mini":
            bos, eos = eos, bos
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos}
        source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        tool_use = FOLDER / f"{name}.tool_use.jinja"
        if tool_use.is_file():
            named = {"default": source, "tool_use": tool_use.read_text(encoding="utf-8")}
            sources: object = [{"name": key, "template": text} for key, text in named.items()]
        else:
            sources = source
        special = [token for token in model.special_tokens if token not in ADDED]
        plain = [token for token in model.special_tokens if token in ADDED]
        folder = save_tokenizer(tmp_path_factory.mktemp(name), byte_level(special, plain), config, sources)
        tokenizer = HFTokenizer.load(folder)
        reference = PreTrainedTokenizerFast.from_pretrained(folder)
        return Both(ChatTemplate.load(folder, tokenizer), reference, tokenizer)

    return loaded


def reference_prompt(both: Both, messages: Any, tools: Any, generate: bool, **variables: Any) -> str | None:
    """Return transformers' prompt, or None where the template rejects the messages."""
    if tools and "xml_tools" in both.template.text:
        variables["xml_tools"] = tools
    try:
        return both.reference.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=generate, **variables
        )
    except (jinja2.TemplateError, TypeError):
        return None


@pytest.mark.share(2)
@pytest.mark.parametrize("name", MODELS)
def test_prompts_equal_those_of_transformers(name: str, load: Any) -> None:
    """Every conversation, with and without tools, to be continued or not, thinking unset, on and off."""
    both = load(name)
    num_equal = 0
    for title, messages in CONVERSATIONS.items():
        for tools in (None, TOOLS):
            for generate in (True, False):
                for value in (None, True, False) if name in SWITCHES else (None,):
                    variables = {} if value is None else {SWITCHES[name]: value}
                    expected = reference_prompt(both, messages, tools, generate, **variables)
                    where = (title, bool(tools), generate, value)
                    options = RenderOptions(variables=variables, add_generation_prompt=generate)
                    if expected is None:
                        with pytest.raises(InvalidRequest):
                            both.template.render(messages, tools=tools, options=options)
                        continue
                    prompt = both.template.render(messages, tools=tools, options=options)
                    assert prompt.text == expected, where
                    num_equal += 1
                    if title == "results":
                        ids = both.reference(expected, add_special_tokens=False)["input_ids"]
                        assert both.tokenizer.encode_chat(prompt) == ids, where
    assert num_equal >= 16


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("gpt-oss", ("Reasoning: low", "Reasoning: medium")),
        ("qwen-3", ("</think>", "")),
        ("smollm-3", ("/no_think", "")),
    ],
)
def test_variables_of_thinking_reach_the_template(name: str, texts: tuple[str, str], load: Any) -> None:
    both = load(name)
    variables = {"reasoning_effort": "low"} if name == "gpt-oss" else {"enable_thinking": False}
    changed, default = (
        both.template.render([USER], options=RenderOptions(variables=each)).text for each in (variables, {})
    )
    assert texts[0] in changed and texts[0] not in default and texts[1] in default
    assert changed == reference_prompt(both, [USER], None, True, **variables)


def written_calls(model: Model, both: Both, num_calls: int) -> str:
    """Return the text that a model writes to make these calls: what its template puts into the history."""
    plain = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in CALLS[:num_calls]
    ]
    conversation = ChatMessages.parse([USER, {"role": "assistant", "content": None, "tool_calls": plain}])
    messages, tools = template_input(conversation, TOOLS, both.tool_format, both.template)
    text = both.template.render(messages, tools=tools, options=RenderOptions(add_generation_prompt=False)).text
    answer = text.partition(model.before_answer)[2]
    return answer.partition(model.after_answer)[0] if model.after_answer else answer


@pytest.mark.share(2)
@pytest.mark.parametrize("name", MODELS)
def test_the_calls_that_a_template_writes_are_read_back_in_every_split(name: str, load: Any) -> None:
    model, both = MODELS[name], load(name)
    assert TOOL_FORMATS[model.tool_format].name == both.tool_format.name
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    for num_calls in range(1, model.num_calls + 1):
        written = written_calls(model, both, num_calls)
        expected = [(call["function"]["name"], call["function"]["arguments"]) for call in CALLS[:num_calls]]
        for parts in ((written,), tuple(written), *halves(written)):
            result = read(both.tool_format, *parts, schemas=schemas)
            assert [(each, json.loads(arguments)) for each, arguments in result.calls] == expected, parts
            assert not result.text.strip()


@pytest.mark.share(3)
@pytest.mark.parametrize("name", MODELS)
def test_a_cut_answer_gives_the_beginning_of_its_calls(name: str, load: Any) -> None:
    """Whatever is cut off, the calls are those of the whole answer, and the last one may be incomplete."""
    model, both = MODELS[name], load(name)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    written = written_calls(model, both, model.num_calls)
    whole = read(both.tool_format, written, schemas=schemas).calls
    for size in range(len(written)):
        cut = read(both.tool_format, written[:size], schemas=schemas)
        assert len(cut.calls) <= len(whole)
        for index, (each, arguments) in enumerate(cut.calls):
            assert each == whole[index][0], written[:size]
            assert arguments == whole[index][1] or index == len(cut.calls) - 1, written[:size]


@pytest.mark.parametrize("name", ["qwen-3", "smollm-3", "glm-4.5", "deepseek-r1-distill"])
def test_reasoning_in_an_answer_is_found_where_its_markers_are_special_tokens(name: str, tmp_path: Path) -> None:
    """Also the tokens are those of transformers; in a user's text, the same markers stay text."""
    special = [*(token for token in MODELS[name].special_tokens if token not in ADDED), *sorted(ADDED)]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": special[1]}
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    folder = save_tokenizer(tmp_path, byte_level(special, []), config, source)
    tokenizer = HFTokenizer.load(folder)
    both = Both(ChatTemplate.load(folder, tokenizer), PreTrainedTokenizerFast.from_pretrained(folder), tokenizer)
    assert "</think>" in tokenizer.special_tokens
    for title in ("thoughts", "reasoning"):
        prompt = both.template.render(CONVERSATIONS[title])
        expected = reference_prompt(both, CONVERSATIONS[title], None, True)
        assert prompt.text == expected
        assert tokenizer.encode_chat(prompt) == both.reference(expected, add_special_tokens=False)["input_ids"]
    answer = {"role": "assistant", "content": f"<think>hm</think>Hoch{special[1]}"}
    for message in ({**USER, "content": "Hoch </think>"}, answer):
        prompt = both.template.render([USER, message, USER])
        place = prompt.text.index("Hoch") + len("Hoch")
        assert {place, place + 1} & prompt.literal
