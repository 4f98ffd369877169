"""ModelFormat, FORMATS: how models of each kind reason and call, and services whose model writes such answers.

A model's tokenizer has the markers of its format as single tokens: special ones, which a decoder leaves out, and
others.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.tokenizer import HFTokenizer
from support_chat_templates import FOLDER
from support_scripted_model import CONFIG, Reply, ScriptedRunner
from support_text import byte_level

PARAMETERS = {
    "type": "object",
    "properties": {
        "place": {"type": "string"},
        "days": {"type": "integer"},
        "all": {"type": "boolean"},
        "more": {"type": "object", "properties": {"k": {"type": "array", "items": {"type": ["string", "null"]}}}},
    },
    "required": ["place"],
}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "description": "", "parameters": PARAMETERS}}
OTHER: dict[str, Any] = {
    "type": "function", "function": {"name": "stop", "description": "", "parameters": {"type": "object"}},
}  # fmt: skip
TOOLS = [TOOL, OTHER]
PLACE = 'Łódź "N}"\n<b>, [1] </'
ARGUMENTS: dict[str, Any] = {"place": PLACE, "days": 2, "all": True, "more": {"k": ["a, }b", None]}}
JSON = r'{"place": "Łódź \"N}\"\n<b>, [1] </", "days": 2, "all": true, "more": {"k": ["a, }b", null]}}'
KEYWORDS = r"""place="Łódź \"N}\"\n<b>, [1] </", days=2, all=True, more={"k": ['a, }b', None]}"""
THOUGHT = "I look.\nIt is } far."


class ModelFormat(NamedTuple):
    """The habits of one kind of model.

    Attributes:
        template: name of its chat template.
        reasoning: name of its format of reasoning, "" where it has none.
        tool_format: name of its format of calls.
        special: special tokens, the beginning of a text and the end of an answer first.
        answer: an answer with the reasoning THOUGHT and the calls look(**ARGUMENTS) and stop().
        forced: a forced call of look, as its grammar demands it.
        written: text of the prompt of a conversation with such an answer and its results.
        added: tokens that are not special.
        variables: variables of the template with which the model reasons.
        begins_open: whether the prompt begins the reasoning.
        opening: text of the answer that the prompt has already.
    """

    template: str
    reasoning: str
    tool_format: str
    special: tuple[str, ...]
    answer: str
    forced: str
    written: tuple[str, ...]
    added: tuple[str, ...] = ()
    variables: dict[str, Any] = {}  # noqa: RUF012 - nothing changes it
    begins_open: bool = False


def _think(text: str, *, is_open: bool = False) -> str:
    return f"{'' if is_open else '<think>'}\n{THOUGHT}\n</think>\n\n{text}"


def _coder(end: str = "") -> str:
    return (
        f"<tool_call>\n<function=look>\n<parameter=place>\n{PLACE}\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        '<parameter=all>\nTrue\n</parameter>\n<parameter=more>\n{"k": ["a, }b", null]}\n</parameter>\n</function>\n'
        f"</tool_call>{end}"
    )


CODER_STOP = "\n<tool_call>\n<function=stop>\n</function>\n</tool_call>"
CODER_FORCED = (
    "<tool_call>\n<function=look>\n<parameter=place>\nRome\n</parameter>\n<parameter=all>\ntrue\n</parameter>\n"
    "</function>\n</tool_call>"
)
HERMES_CALLS = (
    f'<tool_call>\n{{"name": "look", "arguments": {JSON}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
)
HERMES_FORCED = '{"name": "look", "arguments": {"place": "Rome", "all": true}}'
GENERIC_CALLS = f'{{"tool_calls": [{{"name": "look", "arguments": {JSON}}}, {{"name": "stop", "arguments": {{}}}}]}}'
CHATML = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")
TOOL_TAGS = ("<tool_call>", "</tool_call>")
THINK_TAGS = ("<think>", "</think>")
PHI = ("<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
GEMMA = ("<bos>", "<turn|>", "<|turn>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>",
         "<|think|>", "<|tool_response>", "<tool_response|>", "<|tool>", "<tool|>")  # fmt: skip
GEMMA_CALLS = (
    f'<|tool_call>call:look{{place:<|"|>{PLACE}<|"|>,days:2,all:true,more:{{k:[<|"|>a, }}b<|"|>,null]}}}}<tool_call|>'
    "<|tool_call>call:stop{}<tool_call|>"
)
LFM = ("<|startoftext|>", "<|im_end|>", "<|im_start|>", "<|tool_call_start|>", "<|tool_call_end|>",
       "<|tool_response_start|>", "<|tool_response_end|>")  # fmt: skip
LFM_CALLS = f"<|tool_call_start|>[look({KEYWORDS}), stop()]<|tool_call_end|>"
LFM_FORCED = '<|tool_call_start|>[look(place="Rome", all=true)]<|tool_call_end|>'
OLMO_CALLS = f"<function_calls>look({KEYWORDS})\nstop()</function_calls>"
OLMO_FORCED = '<function_calls>look(place="Rome", all=true)</function_calls>'
MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]",
           "[THINK]", "[/THINK]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
           "[/TOOL_RESULTS]")  # fmt: skip
GRANITE = ("<|end_of_text|>", "<|end_of_role|>", "<|start_of_role|>", "<|tool_call|>")
HARMONY = ("<|startoftext|>", "<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>",
           "<|constrain|>")  # fmt: skip
GLM = ("[gMASK]", "<|endoftext|>", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
GLM_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

FORMATS = {
    each.template: each
    for each in (
        ModelFormat(
            "qwen-3.5", "qwen3", "qwen3-coder", CHATML, _think(_coder(CODER_STOP), is_open=True), CODER_FORCED,
            (f"<think>\n{THOUGHT}\n</think>", "<function=look>", "<tool_response>\nsunny"),
            added=(*TOOL_TAGS, *THINK_TAGS), begins_open=True,
        ),
        ModelFormat(
            "qwen-3-coder", "", "qwen3-coder", CHATML, _coder(CODER_STOP), CODER_FORCED,
            ("<function=look>", "<tool_response>\nsunny"), added=TOOL_TAGS,
        ),
        ModelFormat(
            "qwen-3", "qwen3", "hermes", CHATML, _think(HERMES_CALLS), "<tool_call>\n" + HERMES_FORCED,
            (f"<think>\n{THOUGHT}\n</think>", '<tool_call>\n{"name": "look"', "<tool_response>\nsunny"),
            added=(*TOOL_TAGS, *THINK_TAGS),
        ),
        ModelFormat(
            "qwen-3-next-thinking", "qwen3", "hermes", CHATML, _think(HERMES_CALLS, is_open=True),
            "<tool_call>\n" + HERMES_FORCED,
            (f"<think>\n{THOUGHT}\n</think>", '<tool_call>\n{"name": "look"', "<tool_response>\nsunny"),
            added=(*TOOL_TAGS, *THINK_TAGS), begins_open=True,
        ),
        ModelFormat(
            "gemma-2", "", "generic", ("<bos>", "<end_of_turn>", "<start_of_turn>"), GENERIC_CALLS, GENERIC_CALLS,
            ('{"tool_calls": [{"name": "look"', "sunny"),
        ),
        ModelFormat(
            "gemma-4", "gemma4", "gemma4", GEMMA, f"<|channel>thought\n{THOUGHT}\n<channel|>{GEMMA_CALLS}",
            '<|tool_call>call:look{place:<|"|>Rome<|"|>,all:true}<tool_call|>',
            (f"<|channel>thought\n{THOUGHT}\n<channel|>", "<|tool_call>call:look{", '{value:<|"|>sunny<|"|>}'),
            variables={"enable_thinking": True},
        ),
        ModelFormat(
            "gpt-oss", "openai_gptoss", "harmony", HARMONY,
            f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>commentary to=functions.look "
            f"<|constrain|>json<|message|>{JSON}<|call|><|start|>assistant<|channel|>commentary to=functions.stop "
            "<|constrain|>json<|message|>{}<|call|>",
            '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"place": "Rome", "all": true}',
            (THOUGHT, "to=functions.look", "sunny"),
        ),
        ModelFormat(
            "phi-3", "", "generic", PHI, GENERIC_CALLS, GENERIC_CALLS, ('{"tool_calls": [{"name": "look"', "sunny")
        ),
        ModelFormat(
            "phi-4", "", "generic", ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|im_sep|>"), GENERIC_CALLS,
            GENERIC_CALLS, ('{"tool_calls": [{"name": "look"', "sunny"),
        ),
        ModelFormat(
            "phi-4-mini", "", "generic", PHI, GENERIC_CALLS, GENERIC_CALLS, ('{"tool_calls": [{"name": "look"', "sunny")
        ),
        ModelFormat(
            "phi-4-reasoning", "qwen3", "generic", ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|im_sep|>"),
            _think(GENERIC_CALLS), GENERIC_CALLS, ('{"tool_calls": [{"name": "look"', "sunny"), added=THINK_TAGS,
        ),
        ModelFormat(
            "smollm-3", "qwen3", "hermes", CHATML, _think(HERMES_CALLS), "<tool_call>\n" + HERMES_FORCED,
            ('<tool_call>\n{"name": "look"', "sunny"), added=(*TOOL_TAGS, *THINK_TAGS),
        ),
        ModelFormat(
            "granite-3.3", "granite33", "granite", GRANITE,
            f'<think>\n{THOUGHT}\n</think><response><|tool_call|>[{{"name": "look", "arguments": {JSON}}}, '
            '{"name": "stop", "arguments": {}}]</response>', f"<|tool_call|>[{HERMES_FORCED}",
            ('<|tool_call|>[{"name": "look"', "sunny"),
        ),
        ModelFormat(
            "granite-4", "", "hermes", (*GRANITE[:3], *TOOL_TAGS), HERMES_CALLS, HERMES_FORCED,
            ('<tool_call>\n{"name": "look"', "<tool_response>\nsunny"),
        ),
        ModelFormat(
            "lfm-2", "", "pythonic", LFM, LFM_CALLS, LFM_FORCED,
            ('<|tool_call_start|>[look(place="', "), stop()]<|tool_call_end|>", "<|tool_response_start|>sunny"),
        ),
        ModelFormat(
            "lfm-2.5", "qwen3", "pythonic", LFM, _think(LFM_CALLS), LFM_FORCED,
            (f"<think>{THOUGHT}</think>", "<|tool_call_start|>[look(place='", "tool\nsunny"), added=THINK_TAGS,
        ),
        ModelFormat("olmo-2", "", "generic", ("<|endoftext|>", "<|pad|>"), GENERIC_CALLS, GENERIC_CALLS,
                    ('{"tool_calls": [{"name": "look"', "sunny")),
        ModelFormat(
            "olmo-3", "", "pythonic", CHATML, OLMO_CALLS, OLMO_FORCED,
            ('<function_calls>look(place="', "stop()</function_calls>", "environment\nsunny"),
        ),
        ModelFormat(
            "olmo-3-think", "qwen3", "pythonic", CHATML, _think(OLMO_CALLS, is_open=True), OLMO_FORCED,
            ('<function_calls>look(place="', "environment\nsunny"), begins_open=True,
        ),
        ModelFormat(
            "ministral-3", "mistral", "mistral", MISTRAL,
            f"[THINK]{THOUGHT}[/THINK][TOOL_CALLS]look[ARGS]{JSON}[TOOL_CALLS]stop[ARGS]{{}}",
            '[TOOL_CALLS]look[ARGS]{"place": "Rome", "all": true}',
            (f"[THINK]{THOUGHT}[/THINK]", '[TOOL_CALLS]look[ARGS]{"place"', "[TOOL_RESULTS]sunny"),
        ),
        ModelFormat(
            "mistral", "", "mistral", ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
            f'[TOOL_CALLS][{{"name": "look", "arguments": {JSON}}}, {{"name": "stop", "arguments": {{}}}}]',
            HERMES_FORCED, ('[TOOL_CALLS] [{"name": "look"', "sunny"),
        ),
        ModelFormat("mixtral", "", "generic", ("<s>", "</s>"), GENERIC_CALLS, GENERIC_CALLS,
                    ('{"tool_calls": [{"name": "look"', "sunny")),
        ModelFormat(
            "glm-4", "qwen3", "generic", GLM, _think(GENERIC_CALLS), GENERIC_CALLS,
            ('{"tool_calls": [{"name": "look"', "sunny"), added=THINK_TAGS,
        ),
        ModelFormat(
            "glm-4.5", "qwen3", "glm", GLM,
            _think(f"<tool_call>look\n<arg_key>place</arg_key>\n<arg_value>{PLACE}</arg_value>\n<arg_key>days</arg_key>\n"
                   "<arg_value>2</arg_value>\n<arg_key>all</arg_key>\n<arg_value>true</arg_value>\n<arg_key>more</arg_key>"
                   '\n<arg_value>{"k": ["a, }b", null]}</arg_value>\n</tool_call>\n<tool_call>stop\n</tool_call>'),
            "<tool_call>look\n<arg_key>place</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>all</arg_key>\n"
            "<arg_value>true</arg_value>\n</tool_call>",
            ("<tool_call>look", "sunny"), added=(*TOOL_TAGS, *THINK_TAGS, *GLM_TAGS),
        ),
    )
}  # fmt: skip
"""Template -> the format of its model."""


@cache
def tokenizer_of(name: str) -> HFTokenizer:
    """Return the tokenizer of a model, with its markers as tokens."""
    found = FORMATS[name]
    backend = byte_level([*found.special], [*found.added])
    return HFTokenizer(backend, {"bos_token": found.special[0], "eos_token": found.special[1]})


@cache
def chat_template_of(name: str) -> ChatTemplate:
    """Return the chat template of a model with its tokenizer."""
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate({"default": source}, tokenizer_of(name))


def tokens_of_answer(name: str, answer: str) -> list[str]:
    """Return the texts of the tokens of an answer, its markers whole."""
    marker = "|".join(map(re.escape, (*FORMATS[name].special, *FORMATS[name].added)))
    return re.findall(rf"{marker}|\w+|\s+|.", answer, re.DOTALL)


class FormatRunner(ScriptedRunner):
    """A ScriptedRunner whose model writes `reply` to every prompt in the tokens of a tokenizer; it keeps prompts."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        super().__init__(replace(CONFIG, vocab_size=tokenizer.vocab_size))
        self._tokenizer = tokenizer
        self.reply = ""
        self.prompts: list[str] = []

    def _update_slots(self, plan: StepPlan) -> None:
        super()._update_slots(plan)
        (eos,) = self._tokenizer.eos_token_ids
        for sequence in plan.new_sequences:
            num_prompt_tokens = len(sequence.token_ids) - sequence.num_output_tokens
            ids: Sequence[int] = sequence.token_ids[:num_prompt_tokens]
            self.prompts.append(self._tokenizer.decode(ids, skip_special_tokens=False))
            reply = Reply([*self._tokenizer.encode(self.reply, add_special_tokens=False), eos])
            reply.skip(sequence.token_ids[num_prompt_tokens:])
            self._replies[sequence.slot] = reply

    def _reply_to(self, prompt: str) -> str:
        return self.reply


def format_service(name: str) -> tuple[TextService, FormatRunner]:
    """Start an engine over the scripted model of a kind; the caller closes the client of the service."""
    tokenizer = tokenizer_of(name)
    runner = FormatRunner(tokenizer)
    options = SchedulerConfig()
    vocabulary = GrammarTokenizer(tokenizer.serialized().encode(), tokenizer.eos_token_ids)
    service = TextService(
        client=InlineClient(EngineLoop(runner, options), vocabulary=vocabulary), tokenizer=tokenizer,
        chat_template=chat_template_of(name), defaults=ModelDefaults(eos_token_ids=tokenizer.eos_token_ids),
        model="fake", max_queue_size=options.max_queue_size, seeds=random.Random(5),
    )  # fmt: skip
    return service, runner
