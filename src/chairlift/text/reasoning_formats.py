"""ReasoningFormat, detect_reasoning_format: how a model marks its reasoning, and where a prompt leaves it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto

from chairlift.core.errors import ConfigError
from chairlift.core.structured_output import ReasoningPrefix


class ReasoningState(Enum):
    """Where the end of a prompt stands.

    NOT_STARTED: the output may begin with reasoning. OPEN: it begins within the reasoning. ENDED: it has none.
    """

    NOT_STARTED = auto()
    OPEN = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The texts around a model's reasoning.

    Attributes:
        name: name of the format, for settings.
        starts: spellings of the text before the reasoning.
        ends: spellings of the text after it.
        is_always_open: whether an output without a start begins within the reasoning.
        answer_start: text between the reasoning and the answer.
        answer_tags: tags around the answer behind the reasoning, which are no part of it; a model may leave them out.
        excluded: other texts that end the reasoning, which it does not contain before a structured output.
        is_read_by_tool_format: whether the format of tool calls separates the reasoning, too.
    """

    name: str
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    is_always_open: bool = False
    answer_start: str = ""
    answer_tags: tuple[str, str] | None = None
    excluded: tuple[str, ...] = ()
    is_read_by_tool_format: bool = False

    def uses_any(self, tokens: Collection[str]) -> bool:
        """Return whether a marker contains one of the tokens."""
        return any(token in marker for marker in (*self.starts, *self.ends) for token in tokens)

    def state_after(self, prompt: str, *, continued_text: str | None = None) -> ReasoningState:
        """Return where the output of a prompt begins.

        `continued_text` is the beginning of the answer at the end of the prompt, None where there is none.
        """
        end = prompt.rstrip()
        if continued_text and (text := continued_text.strip()):
            last_start = max(text.rfind(start) for start in self.starts)
            if last_start > max(text.rfind(mark) for mark in self.ends):
                return ReasoningState.OPEN
            before = end.removesuffix(text).rstrip()
            is_open = before.endswith(self.starts) and not any(mark in text for mark in self.ends)
            return ReasoningState.OPEN if is_open else ReasoningState.ENDED
        if end.endswith(self.starts):
            return ReasoningState.OPEN
        answer_starts = (self.answer_start,) if self.answer_start else self.ends
        return ReasoningState.ENDED if end.endswith(answer_starts) else ReasoningState.NOT_STARTED

    def prefix_of(self, state: ReasoningState) -> ReasoningPrefix | None:
        """Return what a structured output may have before it; None where the reasoning has ended."""
        if state is ReasoningState.ENDED:
            return None
        return ReasoningPrefix(
            starts=self.starts, ends=self.ends, is_open=state is ReasoningState.OPEN, answer_start=self.answer_start,
            excluded=self.excluded,
        )  # fmt: skip


def _think_tags(name: str, *, is_always_open: bool = False) -> ReasoningFormat:
    return ReasoningFormat(name=name, starts=("<think>",), ends=("</think>",), is_always_open=is_always_open)


THINK_TAGS = _think_tags("qwen3")
GRANITE = ReasoningFormat(
    name="granite",
    starts=("Here is my thought process:", "Here's my thought process:"),
    ends=("Here is my response:", "Here's my response:"),
)
GRANITE_TAGS = ReasoningFormat(
    name="granite33", starts=("<think>",), ends=("</think>",), answer_tags=("<response>", "</response>")
)
MISTRAL = ReasoningFormat(name="mistral", starts=("[THINK]",), ends=("[/THINK]",))
SEED_OSS = ReasoningFormat(name="seed_oss", starts=("<seed:think>",), ends=("</seed:think>",))
COMMAND_A = ReasoningFormat(name="command_a", starts=("<|START_THINKING|>",), ends=("<|END_THINKING|>",))
GEMMA4 = ReasoningFormat(name="gemma4", starts=("<|channel>thought",), ends=("<channel|>",))
HARMONY = ReasoningFormat(
    name="openai_gptoss", starts=("<|channel|>analysis<|message|>",), ends=("<|end|><|start|>assistant",),
    answer_start="<|channel|>final<|message|>", is_read_by_tool_format=True,
    excluded=("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"),
)  # fmt: skip

REASONING_FORMATS = {
    each.name: each
    for each in (
        THINK_TAGS, _think_tags("deepseek_r1", is_always_open=True), _think_tags("deepseek_v3"), _think_tags("glm45"),
        _think_tags("minimax_m2", is_always_open=True), _think_tags("step3", is_always_open=True),
        _think_tags("olmo3", is_always_open=True), _think_tags("kimi_k2"), _think_tags("smollm3"), GRANITE,
        GRANITE_TAGS, MISTRAL, SEED_OSS, COMMAND_A, GEMMA4, HARMONY,
    )
}  # fmt: skip
"""Name -> format; the names are vLLM's where vLLM has one."""

REASONING_MARKERS = frozenset(
    {"<|channel>"}.union(*((*each.starts, *each.ends) for each in REASONING_FORMATS.values()))
)
"""Texts at which chat templates split an earlier answer; that of Gemma 4 splits at the first token of its start."""

AUTO, NONE = "auto", "none"
REASONING_PARSERS = (AUTO, NONE, *REASONING_FORMATS)
"""Values of the setting reasoning_parser."""

_DETECTED = (GRANITE_TAGS, THINK_TAGS, SEED_OSS, GRANITE, MISTRAL, COMMAND_A, GEMMA4)
"""Formats that a chat template shows, the most specific ones first."""


def detect_reasoning_format(template: str, prompt: Callable[[], str] = str) -> ReasoningFormat | None:
    """Return the format whose markers a chat template has; None without reasoning.

    Where a template has the start of the reasoning alone, `prompt` renders it: a prompt that ends with a start leaves
    its end to the model (Olmo 3 Think).
    """
    if "<|channel|>" in template and "<|message|>" in template:
        return HARMONY
    for each in _DETECTED:
        has_tags = each.answer_tags is None or all(tag in template for tag in each.answer_tags)
        if has_tags and any(end in template for end in each.ends):
            return each
    begun = [each for each in _DETECTED if each.answer_tags is None and any(start in template for start in each.starts)]
    end = prompt().rstrip() if begun else ""
    return next((each for each in begun if end.endswith(each.starts)), None)


def choose_reasoning_format(name: str, template: str, prompt: Callable[[], str] = str) -> ReasoningFormat | None:
    """Return the format of this name, the detected one for AUTO, None for NONE. Raises ConfigError naming them all."""
    if name == AUTO:
        return detect_reasoning_format(template, prompt)
    if name == NONE:
        return None
    if name not in REASONING_FORMATS:
        raise ConfigError(
            f"reasoning_parser must be one of {', '.join(REASONING_PARSERS)}, got {name[:40]!r}",
            option="reasoning_parser",
        )
    return REASONING_FORMATS[name]
