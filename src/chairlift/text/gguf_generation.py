"""generation_fields: the content of generation_config.json, from a GGUF file's metadata."""

import math
from collections.abc import Mapping
from typing import Any

from chairlift.text.gguf_vocabulary import GGUFVocabulary, TokenType, read_vocabulary

END_SPELLINGS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
    "<｜end▁of▁sentence｜>", "<end_of_utterance>", "<eos>",
)  # fmt: skip
"""Tokens that end a model's turn whatever the file's ids say."""

HARMONY_ENDS = ("<|return|>", "<|call|>")
"""Tokens that end a turn in a vocabulary with both of them, where `<|end|>` ends only a message of the turn."""

SAMPLING_FIELDS: Mapping[str, str] = {
    "temp": "temperature", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "typical_p": "typical_p", "penalty_repeat": "repetition_penalty",
}  # fmt: skip
"""Key after `general.sampling.` -> field of generation_config.json."""


def generation_fields(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of generation_config.json: the token ids, and defaults for sampling.

    `eos_token_id` lists the ids of eos, eot and eom, then the tokens of END_SPELLINGS that the vocabulary has: files
    often name only one of the tokens that end a turn. llama.cpp does so as well. A number that is invalid as a default
    for sampling is not checked here; a value that is no number is left out.

    Raises ModelError where the vocabulary or an id is invalid.
    """
    vocabulary = read_vocabulary(metadata)
    fields: dict[str, Any] = {}
    for role in ("bos", "pad"):
        if role in vocabulary.special_ids:
            fields[f"{role}_token_id"] = vocabulary.special_ids[role]
    if ends := _end_ids(vocabulary):
        fields["eos_token_id"] = ends
    for key, field in SAMPLING_FIELDS.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, float) and math.isfinite(value):
            # Files hold 32-bit floats: 0.6 reads as 0.6000000238418579.
            fields[field] = float(f"{value:.7g}")
        elif isinstance(value, int) and not isinstance(value, bool):
            fields[field] = value
    return fields


def _end_ids(vocabulary: GGUFVocabulary) -> list[int]:
    """Return the ids that end a turn, without repeats, eos first."""
    named = [vocabulary.special_ids[role] for role in ("eos", "eot", "eom") if role in vocabulary.special_ids]
    found = [i for text in END_SPELLINGS if (i := _added_id(vocabulary, text)) is not None]
    harmony = [i for text in HARMONY_ENDS if (i := _added_id(vocabulary, text)) is not None]
    if len(harmony) == len(HARMONY_ENDS):
        message_end = vocabulary.ids.get("<|end|>")
        named, found = ([i for i in ids if i != message_end] for ids in (named, found))
        found += harmony
    return list(dict.fromkeys(named + found))


def _added_id(vocabulary: GGUFVocabulary, text: str) -> int | None:
    """Return the id of a control or user-defined token, None for an ordinary or absent one."""
    token_id = vocabulary.ids.get(text)
    if token_id is None or vocabulary.types[token_id] not in (TokenType.CONTROL, TokenType.USER_DEFINED):
        return None
    return token_id
