"""Grammars of answers that may call: whether a text can be the whole answer, its markers as tokens or as text."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar_matcher import BITS, GrammarMatcher
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_adapter import make_matcher, make_tokenizer, source_of
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.forced_call_grammar import marker_ids
from chairlift.text.optional_call_grammar import optional_call_grammar, optional_reasoning_prefix
from chairlift.text.reasoning_formats import THINK_TAGS, ReasoningState
from chairlift.text.tool_formats.base import ToolFormat
from support_grammars import EOS, VOCAB_SIZE, allowed_tokens, generate_output, random_pick

MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>", "<think>",
           "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
           "<｜tool▁calls▁end｜>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>",
           "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>", "<tool_calls>",
           "</tool_calls>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
           "<|python_tag|>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>",
           "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<minimax:tool_call>",
           "</minimax:tool_call>")  # fmt: skip
BACKEND = Backend.from_str(ByteTokenizer().serialized())
BACKEND.add_tokens([AddedToken(marker, special=not marker.startswith("<t")) for marker in MARKERS])
IDS = {marker: BACKEND.token_to_id(marker) for marker in MARKERS}
PLAIN = ByteTokenizer()
TOKENIZER = make_tokenizer(GrammarTokenizer(BACKEND.to_str().encode(), (EOS,)), VOCAB_SIZE + len(MARKERS))


def encode(text: str) -> list[int]:
    return list(BACKEND.encode(text, add_special_tokens=False).ids)


def compiled(
    tool_format: ToolFormat,
    tools: Mapping[str, Any],
    *,
    tokens: bool = True,
    state: ReasoningState | None = None,
    **options: Any,
) -> GrammarMatcher:
    """Compile the grammar of an answer that may call, behind the reasoning of a format with think tags."""
    ids = marker_ids(tool_format, encode if tokens else PLAIN.encode)
    tool_format = replace(tool_format, token_ids=ids, follows_reasoning=state is not None)
    grammar = optional_call_grammar(tool_format, tools, **{"several": True, **options})
    prefix = optional_reasoning_prefix(tool_format) if state is None else THINK_TAGS.prefix_of(state)
    source = source_of(StructuredOutput(grammar=grammar, reasoning_prefix=prefix), IDS if tokens else {})
    matcher = make_matcher(source, TOKENIZER)
    assert not matcher.is_error(), matcher.get_error()
    return GrammarMatcher(matcher, -(-TOKENIZER.vocab_size // BITS))


def takes_answer(
    tool_format: ToolFormat, tools: Mapping[str, Any], text: str, *, tokens: bool = True, **options: Any
) -> bool:
    """Whether the text can be the whole output; the markers are tokens, or text like any other."""
    followed = compiled(tool_format, tools, tokens=tokens, **options)
    for token in encode(text) if tokens else list(text.encode()):
        if followed.is_terminated or token not in allowed_tokens(followed):
            return False
        followed.advance(token)
    return followed.is_terminated or EOS in allowed_tokens(followed)


def random_answer(followed: GrammarMatcher, begin: str, seed: int) -> str:
    """Return an answer that begins with this text and goes on at random, with the markers as text."""
    for byte in begin.encode():
        assert byte in allowed_tokens(followed), begin
        followed.advance(byte)
    pick = random_pick(seed)
    rest = generate_output(followed, lambda tokens: EOS if EOS in tokens else pick(tokens))
    return begin + rest.decode(errors="replace")
