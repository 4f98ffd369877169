"""SentencePiece vocabularies: ids equal those of its own algorithm and of transformers' tokenizers."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GemmaTokenizer, LlamaTokenizer
from transformers.tokenization_utils_base import generate_merges

from chairlift.core.errors import ModelError
from chairlift.text.gguf_sentencepiece import merges_by_score, sentencepiece_parts
from chairlift.text.gguf_vocabulary import read_vocabulary
from support_gguf_tokenizer import (
    BYTE,
    CONTROL,
    KEY,
    NORMAL,
    STRINGS,
    UNKNOWN,
    USER_DEFINED,
    backend,
    load,
    sentencepiece_metadata,
)

LLAMA, GEMMA = sentencepiece_metadata(), sentencepiece_metadata(**{"general.architecture": "gemma3"})


def ids_by_sentencepiece(metadata: dict[str, Any], text: str, prefix: str) -> list[int]:
    """Return the ids by SentencePiece's algorithm: join the neighbours of the highest score, leftmost first."""
    scores = dict(zip(metadata[KEY + "tokens"], metadata[KEY + "scores"], strict=True))
    ids = {token: i for i, token in enumerate(metadata[KEY + "tokens"])}
    types = metadata[KEY + "token_type"]
    pieces = list((prefix + text).replace(" ", "▁")) if text else []
    while True:
        joined = [(left + right, i) for i, (left, right) in enumerate(pairwise(pieces))]
        choices = [(-scores[piece], i) for piece, i in joined if piece in ids and types[ids[piece]] == NORMAL]
        if not choices:
            break
        _, i = min(choices)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return [
        token_id
        for piece in pieces
        for token_id in ([ids[piece]] if piece in ids else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()])
    ]


@pytest.mark.parametrize("text", [text for text in STRINGS if "<" not in text])
@pytest.mark.parametrize(("metadata", "prefix"), [(LLAMA, "▁"), (GEMMA, "")])
def test_ids_equal_those_of_sentencepieces_algorithm(metadata: dict[str, Any], prefix: str, text: str) -> None:
    ids = backend(metadata).encode(text, add_special_tokens=False).ids
    assert ids == ids_by_sentencepiece(metadata, text, prefix)


LLAMA_BACKEND = backend(LLAMA)


@given(st.text(st.sampled_from("thelifrsopandngvu 42ä中\n▁.") | st.characters(codec="utf-8"), max_size=40))
@settings(max_examples=300, deadline=None)
def test_ids_of_any_text_equal_those_of_sentencepieces_algorithm(text: str) -> None:
    if "<" not in text:
        ids = LLAMA_BACKEND.encode(text, add_special_tokens=False).ids
        assert ids == ids_by_sentencepiece(LLAMA, text, "▁")
        assert LLAMA_BACKEND.decode(ids) == text.replace("▁", " ")


def test_ids_and_texts_equal_those_of_transformers_tokenizers(tmp_path: Path) -> None:
    for metadata, kind in ((LLAMA, LlamaTokenizer), (GEMMA, GemmaTokenizer)):
        tokens, scores = metadata[KEY + "tokens"], metadata[KEY + "scores"]
        vocab = {token: i for i, token in enumerate(tokens)}
        merges = generate_merges(vocab, dict(zip(tokens, scores, strict=True)))
        named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
        named |= {"mask_token": "<unk>"} if kind is GemmaTokenizer else {}
        reference = kind(vocab=vocab, merges=merges, **named)
        tokenizer = load(tmp_path / kind.__name__, metadata)
        for text in STRINGS:
            # transformers' Llama adds no second `▁`, and none after a special token, unlike Llama 2's tokenizer.json.
            if kind is GemmaTokenizer or not (text.startswith((" ", "▁")) or "<s>" in text):
                ids = tokenizer.encode(text, add_special_tokens=False)
                assert ids == reference.encode(text, add_special_tokens=False), text
                assert tokenizer.decode(ids, False) == reference.decode(ids), text


def test_merges_are_all_splits_by_falling_score_and_only_of_ordinary_tokens() -> None:
    tokens = ["a", "b", "ab", "ba", "aba", "<", "s>", "<s>", "<0x0A>", "abab", "bb"]
    types = [NORMAL] * 7 + [CONTROL, BYTE, NORMAL, USER_DEFINED]
    vocabulary = read_vocabulary({KEY + "tokens": tokens, KEY + "token_type": types})
    merges = merges_by_score(vocabulary, [0, 0, -3.0, -4, -1.0, 0, 0, 9.0, 9.0, -4, -1000.0])
    assert merges == [
        ("b", "b"), ("ab", "a"), ("a", "ba"), ("a", "b"), ("b", "a"), ("aba", "b"), ("ab", "ab"),
    ]  # fmt: skip


def test_a_text_that_spells_a_byte_token_is_text(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, LLAMA)
    ids = tokenizer.encode("<0x41>", add_special_tokens=False)
    assert tokenizer.decode(ids) == "<0x41>"
    assert len(ids) > 1
    assert tokenizer.fallback_byte(3 + 0x41) == 0x41
    assert tokenizer.encode("\n", add_special_tokens=False)[-1] in (3 + 0x0A, LLAMA[KEY + "tokens"].index("\n"))


@pytest.mark.parametrize(
    ("changes", "text", "decoded"),
    [
        ({}, "x y", "▁x▁y"),
        ({"add_space_prefix": False}, "x y", "x▁y"),
        ({"general.architecture": "gemma"}, "x y", "x▁y"),
        ({"general.architecture": "gemma2", "add_space_prefix": True}, "x y", "▁x▁y"),
        ({}, "  x   y ", "▁▁▁x▁▁▁y▁"),
        ({"remove_extra_whitespaces": True}, "  x   y ", "▁x▁y"),
        ({"remove_extra_whitespaces": True, "add_space_prefix": False}, "  x \n  y", "x▁\n▁y"),
    ],
)
def test_spaces_are_as_the_file_says(changes: dict[str, Any], text: str, decoded: str) -> None:
    tokenizer = backend(sentencepiece_metadata(**changes))
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(encoding.tokens).replace("<0x0A>", "\n") == decoded
    assert tokenizer.decode(encoding.ids) == decoded.removeprefix("▁").replace("▁", " ")


def test_user_defined_spaces_are_joined_before_anything_else(tmp_path: Path) -> None:
    """Files of Gemma spell them with spaces, older ones with `▁`."""
    base = sentencepiece_metadata(**{"general.architecture": "gemma3"})
    for spelled in ("  ", "▁▁"):
        tokens = [*base[KEY + "tokens"], spelled]
        types, scores = [*base[KEY + "token_type"], USER_DEFINED], [*base[KEY + "scores"], -1000.0]
        metadata = base | {KEY + "tokens": tokens, KEY + "token_type": types, KEY + "scores": scores}
        tokenizer = load(tmp_path / str(len(spelled.encode())), metadata)
        ids = tokenizer.encode("the  the", add_special_tokens=False)
        assert ids.count(len(tokens) - 1) == 1
        assert tokenizer.decode(ids) == "the  the"


def test_a_vocabulary_without_bytes_has_an_unknown_token() -> None:
    metadata = {
        KEY + "model": "llama", KEY + "tokens": ["<unk>", "▁", "a"], KEY + "token_type": [UNKNOWN, NORMAL, NORMAL],
        KEY + "scores": [0.0, 0.0, 0.0], KEY + "unknown_token_id": 0,
    }  # fmt: skip
    assert backend(metadata).encode("azza").ids == [1, 2, 0, 2]
    parts = sentencepiece_parts(metadata, read_vocabulary(metadata))
    assert parts["model"]["byte_fallback"] is False
    assert {"type": "ByteFallback"} not in parts["decoder"]["decoders"]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (None, "has no tokenizer.ggml.scores"),
        ([0.0], "tokenizer.ggml.scores has 1 elements, its vocabulary has"),
        ("x", "tokenizer.ggml.scores must be a list of numbers, got str"),
        ([float("nan")] * len(LLAMA[KEY + "tokens"]), "tokenizer.ggml.scores contain a value that is not a number"),
        ([True] * len(LLAMA[KEY + "tokens"]), "one element is of type bool"),
    ],
)
def test_invalid_scores_are_named(scores: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        backend(sentencepiece_metadata(scores=scores))
