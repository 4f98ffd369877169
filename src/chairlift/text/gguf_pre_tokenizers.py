"""PRE_TOKENIZERS: how the byte-level BPE tokenizers that a GGUF file names split a text before merges apply.

A GGUF file has only the name (`tokenizer.ggml.pre`). The steps here are those of the tokenizer.json files that the
models were published with; `default` has none, its steps are llama.cpp's. A name that is missing here is refused: a
wrong split makes other tokens, and a worse model without any error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Step = Mapping[str, Any]
"""One pre-tokenizer in tokenizer.json's form."""

BYTE_LEVEL: Step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
"""Spells each byte of a piece as one character; the last step of every tokenizer."""

GPT2: Step = {**BYTE_LEVEL, "use_regex": True}
"""The same after a split by GPT-2's own pattern, which the tokenizers library contains."""

DIGITS: Step = {"type": "Digits", "individual_digits": True}
"""Makes each character of Unicode's category N a piece."""


def split(pattern: str) -> Step:
    """Return the step that makes each match of a pattern a piece, and each text between two matches."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What a name in `tokenizer.ggml.pre` stands for.

    Attributes:
        steps: applied one after the other, each to every piece of the one before.
        nfc: a text is normalized to NFC first.
        ignore_merges: a piece that is a token as a whole is that token, whatever the merges make of it.
        adds_bos: a text begins with bos where the file does not say.
    """

    steps: tuple[Step, ...]
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"

LLAMA3 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip

QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

QWEN35 = (
    CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
"""Characters of a word's capitalised beginning, and of its rest; those without case are both."""

TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

DEEPSEEK_WORD = (
    r"\s?"
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴ"
    "ᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
"""Characters with an upper and a lower case, of the scripts that DeepSeek's first tokenizers know."""

DEEPSEEK_PUNCTUATION = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"

CHINESE, CHINESE_OR_KANA = "[一-龥ࠀ-一가-\ud7ff]+", "[一-龥぀-ゟ゠-ヿ]+"

BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"

DEFAULT_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"

DEFAULT_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's pattern, for steps that see a text before its bytes are spelled."""

THREE_DIGITS = split("[0-9][0-9][0-9]")

_llama3 = PreTokenizer((split(LLAMA3), BYTE_LEVEL), ignore_merges=True, adds_bos=True)
_cl100k = PreTokenizer((split(LLAMA3), BYTE_LEVEL))
_glm4 = PreTokenizer((split(LLAMA3), BYTE_LEVEL), ignore_merges=True)
_qwen2 = PreTokenizer((split(QWEN2), BYTE_LEVEL), nfc=True)
_gpt2 = PreTokenizer((GPT2,))
_gpt_neox = PreTokenizer((GPT2,), nfc=True)
_gpt4o = PreTokenizer((split(GPT4O), BYTE_LEVEL))
_single_digits = PreTokenizer((DIGITS, GPT2))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": _gpt2,
    "phi-2": _gpt2,
    "jais": _gpt2,
    "mpt": _gpt_neox,
    "olmo": _gpt_neox,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "command-r": PreTokenizer((DIGITS, GPT2), nfc=True),
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "lfm2": _llama3,
    "smaug-bpe": _cl100k,
    "dbrx": _cl100k,
    "chatglm-bpe": _cl100k,
    "glm4": _glm4,
    "glm5": _glm4,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "qwen35": PreTokenizer((split(QWEN35), BYTE_LEVEL), nfc=True),
    "tekken": PreTokenizer((split(TEKKEN), BYTE_LEVEL), ignore_merges=True, adds_bos=True),
    "gpt-4o": _gpt4o,
    "llama4": _gpt4o,
    "deepseek-v3": PreTokenizer((split(r"\p{N}{1,3}"), split(CHINESE_OR_KANA), split(DEEPSEEK_V3), BYTE_LEVEL)),
    "deepseek-llm": PreTokenizer((
        split(r"[\r\n]"), split(DEEPSEEK_WORD), split(DEEPSEEK_PUNCTUATION), split(r"\s+$"), split(CHINESE), DIGITS,
        BYTE_LEVEL,
    )),
    "deepseek-coder": PreTokenizer((
        split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CHINESE), DIGITS, BYTE_LEVEL,
    )),
    "falcon": PreTokenizer((
        {"type": "Punctuation", "behavior": "Contiguous"}, GPT2, {"type": "Digits", "individual_digits": False},
        THREE_DIGITS,
    )),
    "bloom": PreTokenizer((split(BLOOM), BYTE_LEVEL)),
    "default": PreTokenizer((
        split(DEFAULT_PUNCTUATION), split(DEFAULT_WORDS), split(r"\p{N}+"), THREE_DIGITS, BYTE_LEVEL,
    )),
}  # fmt: skip
"""Name in `tokenizer.ggml.pre` -> what it stands for."""
