"""Vocabulary: what grammars have to know of a tokenizer; plain bytes, so that it crosses process borders."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GrammarTokenizer:
    """A tokenizer, as the tokenizers library writes it.

    Attributes:
        tokenizer_json: its tokenizer.json.
        eos_token_ids: each of them ends an output.
    """

    tokenizer_json: bytes = field(repr=False)
    eos_token_ids: tuple[int, ...]
