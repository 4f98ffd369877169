"""Trains the demo model's tokenizer: byte-level BPE on the training conversations, with ChatML's special tokens."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_model.conversations import Conversation, conversations

SIZE = 2048
SAMPLE = 40_000
"""Conversations that the merges are learnt from."""

END, START, OVER = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
SPECIAL = (OVER, START, END)
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""One token each, but text like any other: they stand in what the assistant says."""

SPLIT = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|[\r\n]|\s+(?!\S)|\s"
"""Words with the space before them but no other sign, so that a word has the same tokens behind each of those; digits
one by one, runs of signs, spaces."""

LAST_FILE = "chat_template.jinja"
"""What `save` writes last."""

TEMPLATE = """\
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if system or tools -%}
<|im_start|>system
{{ system }}
{%- if tools -%}
{{ '\\n' if system else '' }}Tools:
{%- for tool in tools -%}
{%- set function = tool.function if tool.function is defined else tool -%}
{{ '\\n' + function.name }}(
{%- for name, parameter in ((function.parameters or {}).properties or {}).items() -%}
{{ name }}: {{ parameter.type }}{{ '' if loop.last else ', ' }}
{%- endfor -%}
){{ ': ' + function.description if function.description else '' }}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == 'assistant' -%}
<|im_start|>assistant
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
{%- set arguments = function.arguments if function.arguments is string else function.arguments | tojson -%}
{{ '\\n' if message.content or not loop.first else '' -}}
<tool_call>
{"name": "{{ function.name }}", "arguments": {{ arguments }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% elif message.role != 'system' or not loop.first -%}
<|im_start|>{{ 'system' if message.role == 'system' else 'user' }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def plain_text(conversation: Conversation) -> str:
    """Return what is said in a conversation, for the merges."""
    if conversation.text:
        return conversation.text
    said = [f"{message['role']}\n{message['content']}" for message in conversation.messages]
    named = [
        f"{tool['function']['name']}(string, integer): {tool['function']['description']}" for tool in conversation.tools
    ]
    return "\n".join(["system\nTools:", *named, *said])


def train(seed: int, sample: int = SAMPLE) -> Tokenizer:
    """Learn the merges; the same ones for the same seed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()

    def texts() -> Iterator[str]:
        return map(plain_text, islice(conversations(f"tokenizer {seed}"), sample))

    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL) - len(MARKS), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKS])
    assert tokenizer.get_vocab_size() == SIZE
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "model_max_length": 1024,
        "eos_token": END, "pad_token": OVER, "bos_token": None, "add_bos_token": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (folder / LAST_FILE).write_text(TEMPLATE, encoding="utf-8")
