"""ForeignOption: an option of vLLM, SGLang, llama.cpp or transformers, and what it means here.

It is another name of a setting, has no effect, or is refused. Each table of such options only lists them. A reason that
several tables give stands here once; it names our settings in braces, which `in_names` and `in_flags` replace.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

Check = Callable[[str, Any], Any]
"""Returns the plain value of an option with this name, or raises InvalidRequest."""


class OptionEffect(Enum):
    """What a foreign option does."""

    ALIAS = "it sets a setting"
    NONE = "it is accepted and changes nothing"
    REFUSED = "it is an error, because the result would be another one"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignOption:
    """The meaning of one option of another system.

    Attributes:
        effect: what it does.
        setting: the setting that an alias sets; "" for a setting of the same name.
        part: what has that setting, where a table has the options of several parts.
        reason: why it has no effect or is refused and what to do instead, or how an alias differs; a sentence without
            its end. "" for an alias that does not differ, and for an option without effect that is not logged.
        neutral: values of an option without effect, or a refused one, that mean the same as its absence.
        default: the value with which the other system says the same as None.
        check: returns the setting's value for that of an alias; None where the setting's own check is enough.
    """

    effect: OptionEffect
    setting: str = ""
    part: Enum | None = None
    reason: str = ""
    neutral: tuple[Any, ...] = ()
    default: Any = None
    check: Check | None = None


def alias(
    setting: str = "", reason: str = "", *, part: Enum | None = None, default: Any = None, check: Check | None = None
) -> ForeignOption:
    """Return an option that sets a setting, by default the one with its name."""
    return ForeignOption(
        effect=OptionEffect.ALIAS, setting=setting, reason=reason, part=part, default=default, check=check
    )  # fmt: skip


def no_effect(reason: str = "", *neutral: Any, default: Any = None) -> ForeignOption:
    """Return an option that is accepted and changes nothing; the log has the reason, if there is one."""
    return ForeignOption(effect=OptionEffect.NONE, reason=reason, neutral=neutral, default=default)


def refused(reason: str, *neutral: Any) -> ForeignOption:
    """Return an option of which only the neutral values are accepted."""
    return ForeignOption(effect=OptionEffect.REFUSED, reason=reason, neutral=neutral)


def in_names(reason: str) -> str:
    """Return a reason with the settings' names: {max_memory} is max_memory."""
    return re.sub(r"\{(\w+)\}", r"\1", reason)


def in_flags(reason: str) -> str:
    """Return a reason with the settings' flags: {max_memory} is --max-memory."""
    return re.sub(r"\{(\w+)\}", lambda match: "--" + match[1].replace("_", "-"), reason)


# -- reasons -----------------------------------------------------------------------------------------------------------

ONE_COPY = "a server runs one copy of a model on one machine; set {tensor_parallel_size}, or start more servers"
ONE_WORKER = "there is one worker; leave it out"
ONE_IMPLEMENTATION = "there is one implementation"
ONE_CACHE = "the KV cache stays in one server; leave it out"
TEXT_ONLY = "models take text only"
TEXT_AND_EMBEDDINGS = "every model generates text and makes embeddings; classification is not supported"
NO_ADAPTERS = "LoRA adapters are not supported; merge the adapter into the model's weights"
SPECULATION = "set {speculative_config}, a JSON object with the keys method, num_speculative_tokens and model"
NO_SWAP = "preempted requests are recomputed instead of swapped"
NO_CODE = "no code of a model folder is run; an architecture that is not supported is an error"
NO_PLUGIN = "no plugin reads it; leave it out"
NO_PROGRESS_BAR = "loading shows no progress bar"
GRAPHS = "{use_cuda_graph} decides about graphs, whose sizes are fixed, and nothing else is compiled"
CONFIG_FILE = "config.json of the model decides; change that file"
GENERATION_FILE = "the model folder's generation_config.json is read; change that file"
TOKENIZER_FILE = "the tokenizer is the model folder's tokenizer.json; change that file, or name another one's folder"
RAW_LOGPROBS = "logprobs are those of the raw logits; leave it out"
GRAMMARS = "llguidance compiles every grammar; see {reasoning_parser}"
PARTIAL_PREFILLS = "set {long_prefill_threshold} and {max_chunk_tokens}"
