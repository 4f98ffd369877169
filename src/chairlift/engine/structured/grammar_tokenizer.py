"""GrammarTokenizer: the facts about a tokenizer that grammars need, as plain bytes for another process."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GrammarTokenizer:
    """A tokenizer in the JSON format of the tokenizers library.

    Attributes:
        tokenizer_json: its tokenizer.json.
        eos_token_ids: each of them ends an output.
    """

    tokenizer_json: bytes = field(repr=False)
    eos_token_ids: tuple[int, ...]
