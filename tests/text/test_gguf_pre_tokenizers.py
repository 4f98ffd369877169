"""Pre-tokenizers by name: pieces of tricky texts, ids equal to transformers' tokenizers, ignore_merges, NFC."""

import unicodedata
from typing import Any

import pytest
from transformers import (
    CohereTokenizer,
    GPT2Tokenizer,
    GPTNeoXTokenizer,
    Qwen2Tokenizer,
    Qwen3_5Tokenizer,
)
from transformers.convert_slow_tokenizer import TikTokenConverter

from chairlift.text.gguf_pre_tokenizers import DEEPSEEK_WORD, LLAMA3, PRE_TOKENIZERS
from support_gguf_tokenizer import KEY, NORMAL, STRINGS, backend, bpe_metadata

TEXTS = ("I'm WE'LL", " 12345 x²", "a\tb  c \n\n d\n", "HelloWorld ÉTÉ", "你好ひ12, मि！", "a/b//\nx=-1;\r\n")

PIECES: dict[str, tuple[str, ...]] = {  # pieces of TEXTS, separated by `·`; CR is `␍`, LF `␤`, tab `␉`
    "gpt-2": (
        "I·'m· WE·'·LL", " 12345· x·²", "a·␉·b· · c· ␤␤· d·␤", "HelloWorld· ÉTÉ", "你好ひ·12·,· म·ि！",
        "a·/·b·//·␤·x·=-·1·;·␍␤",
    ),
    "smollm": (
        "I·'m· WE·'·LL", " ·1·2·3·4·5· x·²", "a·␉·b· · c· ␤␤· d·␤", "HelloWorld· ÉTÉ", "你好ひ·1·2·,· म·ि！",
        "a·/·b·//·␤·x·=-·1·;·␍␤",
    ),
    "llama-bpe": (
        "I·'m· WE·'LL", " ·123·45· x·²", "a·␉b· · c· ␤␤· d·␤", "HelloWorld· ÉTÉ", "你好ひ·12·,· म·ि！",
        "a·/b·//␤·x·=-·1·;␍␤",
    ),
    "qwen2": (
        "I·'m· WE·'LL", " ·1·2·3·4·5· x·²", "a·␉b· · c· ␤␤· d·␤", "HelloWorld· ÉTÉ", "你好ひ·1·2·,· म·ि！",
        "a·/b·//␤·x·=-·1·;␍␤",
    ),
    "qwen35": (
        "I·'m· WE·'LL", " ·1·2·3·4·5· x·²", "a·␉b· · c· ␤␤· d·␤", "HelloWorld· ÉTÉ", "你好ひ·1·2·,· मि·！",
        "a·/b·//␤·x·=-·1·;␍␤",
    ),
    "tekken": (
        "I·'m· WE·'LL", " ·1·2·3·4·5· x·²", "a·␉b· · c· ␤␤· d·␤", "Hello·World· ÉTÉ", "你好ひ·1·2·,· मि·！",
        "a·/b·//␤·x·=-·1·;␍␤",
    ),
    "gpt-4o": (
        "I'm· WE'LL", " ·123·45· x·²", "a·␉b· · c· ␤␤· d·␤", "Hello·World· ÉTÉ", "你好ひ·12·,· मि·！",
        "a·/b·//␤·x·=-·1·;␍␤",
    ),
    "deepseek-v3": (
        "I·'m· WE·'LL", " ·123·45· x·²", "a·␉b· · c· ␤␤· d·␤", "HelloWorld· ÉTÉ", "你好ひ·12·,· मि·！",
        "a·/b·//␤·x·=-·1·;␍␤",
    ),
    "deepseek-llm": (  # its class of punctuation contains A-Z and a-z, which isolates them from É
        "I·'·m· WE·'·LL", " ·1·2·3·4·5· x·²", "a·␉b· · c· ·␤·␤· d·␤", "HelloWorld· É·T·É", "你好ひ·1·2·,· ·मि·！",
        "a·/·b·//·␤·x·=-·1·;·␍·␤",
    ),
    "deepseek-coder": (
        "I·'·m· WE·'·LL", " ·1·2·3·4·5· x·²", "a·␉b· · c· ·␤·␤· d·␤", "HelloWorld· ÉTÉ", "你好ひ·1·2·,· ·म·ि·！",
        "a·/·b·//·␤·x·=·-·1·;·␍·␤",
    ),
    "bloom": (
        "I'm· WE'LL", " 12345· x²", "a·␉·b· · c· ␤␤· d·␤", "HelloWorld· ÉTÉ", "你好ひ12·,· मि！", "a/b//·␤·x=-1;·␍␤",
    ),
    "default": (
        "I·'·m· WE·'·LL", " ·123·45· x·²", "a·␉·b· · c· ␤␤· d·␤", "HelloWorld· ÉTÉ", "你好ひ·12·,· म·ि·！",
        "a·/·b·//·␤·x·=-·1·;·␍␤",
    ),
}  # fmt: skip

SAME_PIECES = {
    "phi-2": "gpt-2", "jais": "gpt-2", "mpt": "gpt-2", "olmo": "gpt-2", "starcoder": "smollm", "refact": "smollm",
    "command-r": "smollm", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "smaug-bpe": "llama-bpe",
    "lfm2": "llama-bpe", "dbrx": "llama-bpe", "chatglm-bpe": "llama-bpe", "glm4": "llama-bpe", "glm5": "llama-bpe",
    "deepseek-r1-qwen": "qwen2", "llama4": "gpt-4o",
}  # fmt: skip


def pieces(name: str, text: str) -> str:
    """Return the pieces of a text in the form of PIECES."""
    pre_tokenizer = backend(bpe_metadata(name)).pre_tokenizer
    assert pre_tokenizer is not None
    parts = [text[start:end] for _, (start, end) in pre_tokenizer.pre_tokenize_str(text)]
    return "·".join(parts).replace("\r", "␍").replace("\n", "␤").replace("\t", "␉")


@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_tricky_texts(name: str) -> None:
    assert tuple(pieces(name, text) for text in TEXTS) == PIECES[name]


@pytest.mark.parametrize(("name", "other"), SAME_PIECES.items())
def test_names_of_the_same_pieces(name: str, other: str) -> None:
    assert [pieces(name, text) for text in STRINGS] == [pieces(other, text) for text in STRINGS]


def test_falcon_splits_digits_in_the_spelling_of_bytes() -> None:
    """The bytes B2, B3, B9, BC to BE are spelled as digits, so its tokenizer splits characters that have them."""
    pre_tokenizer = backend(bpe_metadata("falcon")).pre_tokenizer
    assert pre_tokenizer is not None

    def spelled(text: str) -> list[str]:
        return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]

    assert spelled("I'm 12345, мир") == ["I", "'", "m", "Ġ", "123", "45", ",", "ĠÐ", "¼", "Ð¸ÑĢ"]
    assert spelled("a--b != c\n x") == ["a", "--", "b", "Ġ", "!=", "Ġc", "Ċ", "Ġx"]


def test_each_name_is_tested() -> None:
    assert set(PRE_TOKENIZERS) == {*PIECES, *SAME_PIECES, "falcon"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen2", Qwen2Tokenizer), ("deepseek-r1-qwen", Qwen2Tokenizer), ("qwen35", Qwen3_5Tokenizer),
        ("gpt-2", GPT2Tokenizer), ("olmo", GPTNeoXTokenizer), ("mpt", GPTNeoXTokenizer), ("command-r", CohereTokenizer),
    ],
)  # fmt: skip
def test_ids_equal_those_of_transformers_tokenizers(name: str, kind: Any) -> None:
    metadata = bpe_metadata(name)
    vocab = {token: i for i, token in enumerate(metadata[KEY + "tokens"])}
    reference = kind(
        vocab=vocab, merges=[tuple(merge.split(" ")) for merge in metadata[KEY + "merges"]]
    ).backend_tokenizer
    tokenizer = backend(metadata)
    for text in STRINGS:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        assert encoding.ids == reference.encode(text, add_special_tokens=False).ids, text
        assert tokenizer.decode(encoding.ids) == reference.decode(encoding.ids)


def test_llama_3s_pattern_is_that_of_transformers_converter() -> None:
    assert TikTokenConverter().pattern == LLAMA3


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_a_decoded_text_is_the_text_itself_or_its_normal_form(name: str) -> None:
    tokenizer = backend(bpe_metadata(name))
    for text in STRINGS:
        expected = unicodedata.normalize("NFC", text) if PRE_TOKENIZERS[name].nfc else text
        assert (
            tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
            == expected
        )


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_a_token_that_no_merges_make_is_found_only_where_the_merges_are_ignored(name: str) -> None:
    base = bpe_metadata(name)
    tokens, types = [*base[KEY + "tokens"], "Ġqzqz"], [*base[KEY + "token_type"], NORMAL]
    tokenizer = backend(bpe_metadata(name, tokens=tokens, token_type=types))
    ids = tokenizer.encode("q qzqz", add_special_tokens=False).ids
    assert (ids[1:] == [len(tokens) - 1]) is PRE_TOKENIZERS[name].ignore_merges
    assert PRE_TOKENIZERS[name].ignore_merges is (
        name in {"llama-bpe", "llama3", "llama-v3", "lfm2", "glm4", "glm5", "tekken"}
    )


def test_deepseeks_class_of_words_has_only_characters_with_case() -> None:
    bounds = [character for character in DEEPSEEK_WORD.removeprefix(r"\s?[").removesuffix("]+") if character != "-"]
    assert {unicodedata.category(character) for character in bounds} == {"Lu", "Ll", "Lt"}
    assert bounds == sorted(set(bounds))
