"""tokenizer_files: the tokenizer files of a model folder, from a GGUF file's metadata.

A GGUF file describes its tokenizer by lists (tokens, merges or scores, types) and by the name of its pre-tokenizer.
The texts of tokenizer.json, tokenizer_config.json and the chat templates follow from them, so everything that reads a
model folder reads a GGUF file as well.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.text.gguf_pre_tokenizers import BYTE_LEVEL, PRE_TOKENIZERS, PreTokenizer
from chairlift.text.gguf_sentencepiece import sentencepiece_parts
from chairlift.text.gguf_vocabulary import PREFIX, GGUFVocabulary, read_flag, read_list, read_text, read_vocabulary

REMEDY = "name the original model's tokenizer with --tokenizer FOLDER_OR_ID"

TEMPLATE = "tokenizer.chat_template"

NAMED_ROLES = ("bos", "eos", "unk", "sep", "pad", "mask")
"""Roles whose tokens tokenizer_config.json names."""


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return file name -> text: tokenizer.json and tokenizer_config.json.

    Args:
        metadata: the GGUF file's keys and values; an array is a list.

    Raises ModelError naming the key that is absent or invalid, UnsupportedModel for another kind of tokenizer than
    byte-level BPE ("gpt2") and SentencePiece ("llama"), and for a pre-tokenizer that is not in PRE_TOKENIZERS.
    """
    kind = read_text(metadata, PREFIX + "model")
    if kind is None:
        raise ModelError(f"the GGUF file has no {PREFIX}model")
    if kind == "gpt2":
        pre_tokenizer = _pre_tokenizer(metadata)
        vocabulary = read_vocabulary(metadata)
        parts, adds_bos = _byte_level_parts(metadata, vocabulary, pre_tokenizer), pre_tokenizer.adds_bos
    elif kind == "llama":
        vocabulary = read_vocabulary(metadata)
        parts, adds_bos = sentencepiece_parts(metadata, vocabulary), True
    else:
        raise _unsupported(f"the GGUF file has a tokenizer of the kind {kind[:100]!r}, which is not supported")
    surrounding = {
        "bos": _adds_token(metadata, vocabulary, "bos", adds_bos),
        "eos": _adds_token(metadata, vocabulary, "eos", False),
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        **parts,
        "post_processor": _post_processor(vocabulary, surrounding),
    }
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(_config(vocabulary, surrounding), ensure_ascii=False, indent=2),
    }


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    name = read_text(metadata, PREFIX + "pre")
    if name is None:
        raise _unsupported(f"the GGUF file has no {PREFIX}pre, without which its tokenizer splits texts wrongly")
    if name not in PRE_TOKENIZERS:
        raise _unsupported(f"the GGUF file's tokenizer has the pre-tokenizer {name[:100]!r}, which is not supported")
    return PRE_TOKENIZERS[name]


def _byte_level_parts(
    metadata: Mapping[str, Any], vocabulary: GGUFVocabulary, pre_tokenizer: PreTokenizer
) -> dict[str, Any]:
    """Return the model, the normalizer, the pre-tokenizer and the decoder in tokenizer.json's form."""
    ids = vocabulary.ids
    merges: list[tuple[str, str]] = []
    for merge in read_list(metadata, "merges", str, "strings"):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelError(
                f"the merge {merge[:100]!r} in the GGUF file's {PREFIX}merges is not two tokens of a third"
            )
        merges.append((left, right))
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": pre_tokenizer.ignore_merges, "vocab": ids, "merges": merges,
    }  # fmt: skip
    return {
        "model": model,
        "normalizer": {"type": "NFC"} if pre_tokenizer.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(pre_tokenizer.steps)},
        "decoder": BYTE_LEVEL,
    }


def _added_tokens(vocabulary: GGUFVocabulary) -> list[dict[str, Any]]:
    """Return the tokens that are found in a text as it is written, before it is normalized and split."""
    return [
        {
            "id": token_id, "content": vocabulary.tokens[token_id], "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": special,
        }
        for token_id, special in vocabulary.special_tokens.items()
    ]  # fmt: skip


def _adds_token(metadata: Mapping[str, Any], vocabulary: GGUFVocabulary, role: str, default: bool) -> bool:
    """Return whether a plain text gets this token; a file without the flag but with the token has the default."""
    flag = read_flag(metadata, f"add_{role}_token")
    if flag and role not in vocabulary.special_ids:
        raise ModelError(f"the GGUF file's {PREFIX}add_{role}_token is true, but it has no {PREFIX}{role}_token_id")
    return role in vocabulary.special_ids and (default if flag is None else flag)


def _post_processor(vocabulary: GGUFVocabulary, surrounding: Mapping[str, bool]) -> dict[str, Any] | None:
    """Return the part of tokenizer.json that adds bos and eos to a text, None where neither is added."""
    added = {role: vocabulary.tokens[vocabulary.special_ids[role]] for role, adds in surrounding.items() if adds}
    if not added:
        return None

    def around(sequence: str, type_id: int) -> list[dict[str, Any]]:
        items = [{"Sequence": {"id": sequence, "type_id": type_id}}]
        if "bos" in added:
            items.insert(0, {"SpecialToken": {"id": added["bos"], "type_id": type_id}})
        if "eos" in added:
            items.append({"SpecialToken": {"id": added["eos"], "type_id": type_id}})
        return items

    special = {text: {"id": text, "ids": [vocabulary.ids[text]], "tokens": [text]} for text in added.values()}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": special,
    }


def _config(vocabulary: GGUFVocabulary, surrounding: Mapping[str, bool]) -> dict[str, Any]:
    """Return the content of tokenizer_config.json.

    A named token becomes special when the file is read. So an ordinary token that the file names for padding, as some
    do, is left out; bos and eos are special in any case.
    """
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {f"add_{role}_token": adds for role, adds in surrounding.items()}
    for role in NAMED_ROLES:
        token_id = vocabulary.special_ids.get(role)
        if token_id is not None and token_id in vocabulary.special_tokens:
            config[f"{role}_token"] = vocabulary.tokens[token_id]
    return config


def template_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the file name and text of each chat template. Raises ModelError for a name that is no file name."""
    files: dict[str, str] = {}
    for key in sorted(metadata):
        name = key.removeprefix(TEMPLATE + ".")
        if key != TEMPLATE and name == key:
            continue
        text = read_text(metadata, key)
        if not text:
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ModelError(f"the GGUF file's {key} is not valid Unicode: {error.reason}") from error
        if key == TEMPLATE:
            files["chat_template.jinja"] = text
        elif re.fullmatch(r"[\w-][\w.-]{0,99}", name, re.ASCII):
            files[f"additional_chat_templates/{name}.jinja"] = text
        else:
            raise ModelError(f"the GGUF file has a chat template with the name {name[:100]!r}, which is no file name")
    return files


def _unsupported(problem: str) -> UnsupportedModel:
    return UnsupportedModel(f"{problem}; {REMEDY}", remedy=REMEDY)
