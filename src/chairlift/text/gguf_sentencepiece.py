"""sentencepiece_parts: a SentencePiece vocabulary of a GGUF file as the parts of a tokenizer.json.

SentencePiece has no merges: in each step it joins the two neighbours whose concatenation is the token with the highest
score. A BPE model does the same when its merges are all splits of all tokens, those of the highest score first. That is
also how transformers converts such a vocabulary. A space is `▁`, and a character without a token is its bytes
(`<0xE4>`).
"""

import math
from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.text.gguf_vocabulary import PREFIX, GGUFVocabulary, TokenType, check_length, read_flag, read_list

SPACE = "▁"

EXTRA_SPACES = r"\A +| +\z| (?= )"
"""Regex of the spaces that `remove_extra_whitespaces` removes: around a text, and all but the last of a run."""


def sentencepiece_parts(metadata: Mapping[str, Any], vocabulary: GGUFVocabulary) -> dict[str, Any]:
    """Return the model, the normalizer, the pre-tokenizer and the decoder in tokenizer.json's form.

    Raises ModelError where the scores are absent or invalid.
    """
    scores: list[float] = read_list(metadata, "scores", (float, int), "numbers")
    check_length("scores", len(scores), len(vocabulary.tokens))
    if any(math.isnan(score) for score in scores if isinstance(score, float)):
        raise ModelError(f"the GGUF file's {PREFIX}scores contain a value that is not a number")
    prefix = read_flag(metadata, "add_space_prefix")
    if prefix is None:
        prefix = not str(metadata.get("general.architecture", "")).startswith("gemma")
    byte_fallback = TokenType.BYTE in vocabulary.types
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    if byte_fallback:
        decoders.append({"type": "ByteFallback"})
    decoders.append({"type": "Fuse"})
    if prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    if read_flag(metadata, "remove_extra_whitespaces"):
        normalizers.insert(0, {"type": "Replace", "pattern": {"Regex": EXTRA_SPACES}, "content": ""})
    model = {
        "type": "BPE", "dropout": None, "unk_token": vocabulary.special_token("unk"), "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": byte_fallback, "ignore_merges": False,
        "vocab": vocabulary.ids, "merges": merges_by_score(vocabulary, scores),
    }  # fmt: skip
    return {
        "model": model,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


def merges_by_score(vocabulary: GGUFVocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Return every split of every token into two tokens, in order of falling scores.

    Tokens of equal scores keep the order of their ids, and a token's splits begin with the longest left part. Control,
    byte, unknown and unused tokens are neither parts nor results: their spellings in a text are ordinary text. A
    user-defined token comes before all others, as in SentencePiece; its score in the file has no meaning.
    """
    usable: dict[str, float] = {}
    for text, token_id in vocabulary.ids.items():
        if vocabulary.types[token_id] == TokenType.NORMAL:
            usable[text] = scores[token_id]
        elif vocabulary.types[token_id] == TokenType.USER_DEFINED:
            usable[text] = math.inf
    return [
        (text[:cut], text[cut:])
        for text in sorted(usable, key=usable.__getitem__, reverse=True)
        for cut in range(len(text) - 1, 0, -1)
        if text[:cut] in usable and text[cut:] in usable
    ]
