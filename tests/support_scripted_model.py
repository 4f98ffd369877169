"""ScriptedRunner: a runner that gives scripted replies, so that clients of a real server are tested with any answer.

`python support_scripted_model.py` serves it under the name "scripted" with a chat template of a reasoning model with
tools. The last message of a prompt selects the reply: SCRIPT has the text that it contains. The engine, its grammars,
the parsers and the HTTP server are the real ones.

`python support_scripted_model.py '{"repeats": true, "port": 0, "fake": {...}, "server": {...}}'` replies with the last
message itself instead; `fake` changes CONFIG and `server` ServerConfig.
"""

import json
import logging
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from chairlift.core.errors import NoAllowedToken
from chairlift.engine.client.process import ProcessClient, start_engine_process
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from chairlift.server.server_process import ServerParts, run
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.chat_template import ChatTemplate
from chairlift.web.auth.credentials import Credentials
from chairlift.web.service.listen_address import ListenAddress
from support_config import make_server_config

TOKENIZER = ByteTokenizer()
(EOS,) = TOKENIZER.eos_token_ids
SPACE = 32
ROLE = re.compile(r"<\|(system|developer|user|assistant|tool)\|>")
MARKER = b"<tool_call>"
CONFIG = FakeConfig(vocab_size=TOKENIZER.vocab_size, max_model_len=16_384, num_blocks=8192, verify=False)
TEMPLATE = """\
{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>{% endif -%}
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.role == 'assistant' and message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>{% endif -%}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""


def call(name: str, arguments: str) -> str:
    """Return a tool call as the template teaches it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WRITE_ANSWER = "printf noon > answer.txt && echo The answer is written"
"""The shell command that agents run: its output selects the reply behind it."""

SCRIPT: tuple[tuple[str, str], ...] = (
    ("weather in Paris", call("get_weather", '{"city": "Paris"}')),
    ("weather in Paris and Rome",
     call("get_weather", '{"city": "Paris"}') + "\n" + call("get_weather", '{"city": "Rome"}')),
    ("think about the weather in Rome",
     "<think>\nI need the weather.\n</think>\n\n" + call("get_weather", '{"city": "Rome"}')),
    ("sunny in Paris", "It is sunny in Paris."),
    ("rainy in Rome", "It is rainy in Rome."),
    ("How many legs have two cats?", "<think>\nA cat has 4 legs.\n2 times 4 is 8.\n</think>\n\nEight."),
    ("Describe Paris", '{"name": "Paris", "population": 2100000, "is_capital": true}'),
    ("Describe Rome", '{"name": "Rome", "population": "many", "is_capital": true}'),
    ("validation error", '{"name": "Rome", "population": 2800000, "is_capital": true}'),
    ("List two cities", '{"tasks": [{"name": "Paris", "population": 2100000, "is_capital": true}, '
                        '{"name": "Rome", "population": 2800000, "is_capital": true}]}'),
    ("Say nothing", ""),
    ("a task for claude-code", call("Bash", json.dumps({"command": WRITE_ANSWER, "description": "Write the answer"}))),
    ("a task for codex", call("exec_command", json.dumps({"cmd": WRITE_ANSWER}))),
    ("a task for opencode", call("bash", json.dumps({"command": WRITE_ANSWER, "description": "Write the answer"}))),
    ("a task for qwen-code", call("run_shell_command", json.dumps({"command": WRITE_ANSWER, "is_background": False}))),
    ("The answer is written", "The note says that lunch is at noon."),
    ("Write the summary only.",
     "<think>\nThey spoke of cats.\n</think>\n\nThe user asked how many legs two cats have: 8."),
    ("the user asked how many legs", "I have read the summary."),
    ("Fill in Rome", '{"city": "Rome"}'),
    ("", "I do not know."),
)  # fmt: skip
"""(Text of the last message, reply); the entry with the longest matching text is used."""


def reply_to(prompt: str) -> str:
    """Return the scripted reply to a rendered prompt, which may end with the beginning of a forced call."""
    messages = ROLE.split(prompt.rpartition("<|assistant|>")[0])[1:]
    texts = [
        text for role, text in zip(messages[::2], messages[1::2], strict=True) if role not in ("system", "developer")
    ]
    last = texts[-1] if texts else ""
    return max((entry for entry in SCRIPT if entry[0].lower() in last.lower()), key=lambda entry: len(entry[0]))[1]


@dataclass
class Reply:
    """The scripted tokens of one sequence, how many of them it has given, and how many others before them."""

    tokens: list[int]
    num_given: int = 0
    num_before: int = 0

    def peek(self) -> int:
        """Return the next token; the last one, EOS, repeats."""
        return self.tokens[min(self.num_given, len(self.tokens) - 1)]

    def skip(self, output: Sequence[int]) -> None:
        """Go on behind tokens that an earlier run has given: tokens of the reply, and others that a grammar added."""
        for token in output:
            if token == self.peek():
                self.num_given += 1
            elif self.num_given == 0:
                self.num_before += 1

    def added(self, allowed: list[int]) -> int:
        """Return a token that the reply lacks: the marker of a call, before which no reasoning is made up, or any."""
        if self.num_given == 0:
            self.num_before += 1
            if self.num_before <= len(MARKER) and MARKER[self.num_before - 1] in allowed:
                return MARKER[self.num_before - 1]
        return next((token for token in allowed if token > SPACE), allowed[0])


class ScriptedRunner(FakeRunner):
    """A FakeRunner whose tokens are the bytes of the scripted reply, then EOS.

    Where a grammar rejects the next byte of the reply, it gives an allowed one and keeps that byte for later. So the
    grammar adds what the reply lacks, such as the notation around the arguments of a forced call.
    """

    def __init__(self, config: FakeConfig) -> None:
        super().__init__(config)
        self._replies: dict[int, Reply] = {}
        self._sampled: dict[int, list[Reply]] = {}

    def _update_slots(self, plan: StepPlan) -> None:
        super()._update_slots(plan)
        for sequence in plan.new_sequences:
            num_prompt_tokens = len(sequence.token_ids) - sequence.num_output_tokens
            text = TOKENIZER.decode(sequence.token_ids[:num_prompt_tokens], skip_special_tokens=False)
            reply = self._replies[sequence.slot] = Reply([*self._reply_to(text).encode(), EOS])
            reply.skip(sequence.token_ids[num_prompt_tokens:])

    def _reply_to(self, prompt: str) -> str:
        return reply_to(prompt)

    def _compute_fast(self, plan: StepPlan) -> StepResult:
        replies = [self._replies[slot] for slot in plan.slots[plan.sample_rows].tolist()]
        masked = set(plan.masked_samples.tolist())
        tokens = [reply.peek() for reply in replies]
        for index, reply in enumerate(replies):
            reply.num_given += index not in masked
        self._sampled[plan.step_id] = replies
        return StepResult(plan.step_id, np.array(tokens, np.int32), np.arange(len(tokens) + 1, dtype=np.int32))

    _compute = _compute_fast  # scripted replies have no logprobs

    def collect(self) -> StepResult:
        result = super().collect()
        self._sampled.pop(result.step_id)
        return result

    def _apply_masks(self, plan: StepPlan, result: StepResult, masks: TokenMasks) -> StepResult:
        tokens, errors = result.tokens.copy(), dict(result.row_errors)
        for sample_index, packed in masks.by_row().items():
            reply = self._sampled[plan.step_id][sample_index]
            bits = np.unpackbits(packed.view(np.uint8), bitorder="little")[: self.config.vocab_size]
            allowed = np.flatnonzero(bits).tolist()
            if reply.peek() in allowed:
                tokens[sample_index] = reply.peek()
                reply.num_given += 1
            elif allowed:
                tokens[sample_index] = reply.added(allowed)
            else:
                errors[int(plan.sample_rows[sample_index])] = NoAllowedToken("the structured output allows no token")
        return replace(result, tokens=tokens, row_errors=tuple(errors.items()))


class ReplyRunner(ScriptedRunner):
    """A ScriptedRunner that replies to a prompt with its last message, which ends at the mark of the answer.

    Where the prompt has a begun answer behind that mark, the reply is what is left of the message.
    """

    def _reply_to(self, prompt: str) -> str:
        asked, _, answer = prompt.rpartition("<|assistant|>")
        message, begun = asked.rpartition("<|user|>")[2], answer.rpartition("</think>")[2]
        return message.partition(begun)[2] if begun and begun in message else message


def build(payload: bytes) -> ScriptedRunner:
    return ScriptedRunner(msgspec.msgpack.decode(payload, type=FakeConfig))


def build_repeating(payload: bytes) -> ReplyRunner:
    return ReplyRunner(msgspec.msgpack.decode(payload, type=FakeConfig))


def _print_line(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main(parameters: dict[str, Any]) -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    scheduler = SchedulerConfig()
    factory = build_repeating if parameters.get("repeats") else build
    config = replace(CONFIG, **parameters.get("fake", {}))
    spec = RunnerSpec(f"support_scripted_model:{factory.__name__}", msgspec.msgpack.encode(config))

    def start() -> TextService:
        client = start_engine_process(
            spec, scheduler, watch=LivenessConfig(),
            vocabulary=GrammarTokenizer(TOKENIZER.serialized().encode(), TOKENIZER.eos_token_ids),
        )  # fmt: skip
        return TextService(
            client=client, tokenizer=TOKENIZER, chat_template=ChatTemplate({"default": TEMPLATE}, TOKENIZER),
            defaults=ModelDefaults(eos_token_ids=TOKENIZER.eos_token_ids), model="scripted",
            max_queue_size=scheduler.max_queue_size, seeds=random.Random(5),
        )  # fmt: skip

    def engine_pid(service: TextService) -> int | None:
        assert isinstance(service.client, ProcessClient)
        process = service.client.process
        return None if process is None else process.pid

    return run(ServerParts(
        config=make_server_config("scripted", **parameters.get("server", {})),
        listening=ListenAddress(port=parameters.get("port", 0)), tls=None, read_credentials=Credentials, start=start,
        engine_pid=engine_pid, budget=scheduler.max_batch_tokens,
        max_running=scheduler.max_running_sequences, print_line=_print_line,
    ))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]) if sys.argv[1:] else {}))
