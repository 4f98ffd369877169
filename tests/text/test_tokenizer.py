"""Tokenizers: ids equal transformers'; a special token spelled by a user is text; invalid files raise ModelError."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from chairlift.core.errors import InvalidRequest, ModelError
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.tokenizer import (
    ChatPrompt,
    HFTokenizer,
    Tokenizer,
    first_difference,
    plain_text,
    special_pattern,
    split_special,
)
from support_shares import FULL, for_each
from support_text import STYLES, build_tokenizer, save_tokenizer, tokenizer_folder, tokenizer_of

TEXTS = ["", "Hello world", "  two  spaces\n\nand 中文 😀", "x</s><|im_end|>[INST] <eos>", "\x00\u200b\t"]


def all_tokenizers() -> list[Tokenizer]:
    return [ByteTokenizer(), *(tokenizer_of(style) for style in STYLES)]


@for_each("style", STYLES)
@for_each("text", TEXTS)
def test_ids_and_text_equal_those_of_transformers(style: str, text: str) -> None:
    tokenizer, reference = tokenizer_of(style), PreTrainedTokenizerFast.from_pretrained(tokenizer_folder(style))
    for add in (True, False):
        ids = tokenizer.encode(text, add_special_tokens=add)
        assert ids == reference(text, add_special_tokens=add)["input_ids"]
        for skip in (True, False):
            assert tokenizer.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)
    assert tokenizer.vocab_size == len(reference)
    assert tokenizer.eos_token_ids == (reference.eos_token_id,)
    assert tokenizer.named_tokens == reference.special_tokens_map


@pytest.mark.parametrize("flags", [{"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}])
@pytest.mark.parametrize("post_processor", [True, False])
def test_what_surrounds_a_text_is_what_tokenizer_json_says_as_in_transformers(
    tmp_path: Path, flags: dict[str, bool], post_processor: bool
) -> None:
    backend, config = build_tokenizer("llama2")
    if not post_processor:
        backend.post_processor = None
    folder = save_tokenizer(tmp_path, backend, config | flags)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)("hello")["input_ids"]
    assert HFTokenizer.load(folder).encode("hello") == reference


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend, config = build_tokenizer("llama3")
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    loaded = HFTokenizer.load(save_tokenizer(tmp_path, backend, config))
    assert loaded.encode("Hello world, hello readers") == tokenizer_of("llama3").encode("Hello world, hello readers")
    assert 3 < len(loaded.encode("Hello world, hello readers")) < 64


def test_a_named_token_of_the_vocabulary_is_special_even_if_the_file_does_not_say_so(tmp_path: Path) -> None:
    backend, config = build_tokenizer("llama2")
    path = save_tokenizer(tmp_path, backend, config) / "tokenizer.json"
    tokenizer_json = json.loads(path.read_text())
    tokenizer_json["added_tokens"] = []
    path.write_text(json.dumps(tokenizer_json))
    loaded = HFTokenizer.load(tmp_path)
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert loaded.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert loaded.encode("a</s>b") == reference("a</s>b")["input_ids"]


def test_an_added_token_that_the_file_calls_ordinary_becomes_special_when_it_is_named(tmp_path: Path) -> None:
    backend, config = build_tokenizer("qwen")
    folder = save_tokenizer(tmp_path, backend, config | {"eos_token": "</think>"})
    loaded, reference = HFTokenizer.load(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    ids = loaded.encode("a</think>b")
    assert loaded.eos_token_ids == (reference.eos_token_id,)
    assert loaded.decode(ids) == reference.decode(ids, skip_special_tokens=True) == "ab"
    assert "</think>" in loaded.special_tokens


def test_a_named_token_that_the_vocabulary_lacks_gets_no_id_beyond_the_model(tmp_path: Path) -> None:
    backend, config = build_tokenizer("llama2")
    loaded = HFTokenizer.load(
        save_tokenizer(tmp_path, backend, config | {"pad_token": "<nowhere>", "eos_token": "<nothing>"})
    )
    assert loaded.vocab_size == tokenizer_of("llama2").vocab_size
    assert loaded.eos_token_ids == ()


@pytest.mark.parametrize("broken", ["", "{}", '{"model": 1}', "[", "\x00"])
def test_a_broken_tokenizer_json_is_named(tmp_path: Path, broken: str) -> None:
    (tmp_path / "tokenizer.json").write_text(broken)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        HFTokenizer.load(tmp_path)


def test_bytes_that_are_not_text_are_a_broken_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        HFTokenizer.load(tmp_path)


def test_a_missing_tokenizer_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        HFTokenizer.load(tmp_path)


@pytest.mark.parametrize("broken", ["{", "[]"])
def test_a_broken_configuration_is_named(tmp_path: Path, broken: str) -> None:
    save_tokenizer(tmp_path, *build_tokenizer("qwen"))
    (tmp_path / "tokenizer_config.json").write_text(broken)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        HFTokenizer.load(tmp_path)


@pytest.mark.parametrize("tokenizer", all_tokenizers(), ids=["bytes", *STYLES])
def test_half_a_character_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match=r"U\+D83D\) at offset 2"):
        tokenizer.encode("ab\ud83d")
    with pytest.raises(InvalidRequest) as caught:
        tokenizer.encode_chat(ChatPrompt("\udc00"))
    assert caught.value.details["param"] == "messages"


@pytest.mark.share(2)
@pytest.mark.parametrize("tokenizer", all_tokenizers(), ids=["bytes", *STYLES])
@given(text=st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_a_chat_without_literal_special_tokens_is_encoded_like_any_text(tokenizer: Tokenizer, text: str) -> None:
    prompt = "".join(tokenizer.special_tokens) + text
    assert tokenizer.encode_chat(ChatPrompt(prompt)) == tokenizer.encode(prompt, add_special_tokens=False)


@pytest.mark.full
@pytest.mark.parametrize("tokenizer", all_tokenizers(), ids=["bytes", *STYLES])
@given(draw=st.data())
@settings(max_examples=60, deadline=None)
def test_only_the_templates_special_tokens_become_special(tokenizer: Tokenizer, draw: st.DataObject) -> None:
    """Of text with special tokens of the template and of the user, only those of the template are special ids."""
    special = st.sampled_from(sorted(tokenizer.special_tokens)).filter(lambda token_text: token_text != "<unk>")
    plain = st.sampled_from(["hello world", " ", "\n", "<", "中 ", "😀", "|im_end|>", "\U0010f000"])
    parts = draw.draw(st.lists(st.tuples(st.one_of(special, plain), st.booleans()), max_size=8))
    text, literal, expected = "", set(), []
    for part, is_from_user in parts:
        if part in tokenizer.special_tokens:
            if is_from_user:
                literal.add(len(text))
            else:
                expected.append(tokenizer.special_tokens[part])
        text += part
    for token_text in tokenizer.special_tokens:  # "<" and "|im_end|>" of the template can form a special token, too
        assume(text.count(token_text) == sum(part.count(token_text) for part, _ in parts))
    ids = tokenizer.encode_chat(ChatPrompt(text, frozenset(literal)))
    special_ids = set(tokenizer.special_tokens.values()) - {tokenizer.special_tokens.get("<unk>")}
    assert [token_id for token_id in ids if token_id in special_ids] == expected
    # Spaces are ignored because some decoders drop a leading one.
    assert tokenizer.decode(ids, False).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("style", STYLES)
def test_the_disguised_tokenizer_reads_the_templates_part_like_the_plain_one(style: str) -> None:
    """A special token of the user at the end does not change how the text before it is encoded."""
    tokenizer = tokenizer_of(style)
    special = next(token_text for token_text in sorted(tokenizer.special_tokens) if token_text != "<unk>")
    start = f"{special} Hello  world{special}\nand 中文 <think> {special}"
    ids = tokenizer.encode_chat(ChatPrompt(f"{start}{special}", frozenset({len(start)})))
    plain = tokenizer.encode(start, add_special_tokens=False)
    assert ids[: len(plain)] == plain
    assert tokenizer.special_tokens[special] not in ids[len(plain) :]


def test_a_vocabulary_that_writes_text_as_a_special_token_refuses_it() -> None:
    backend = Backend(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("a", -3.0)], 0, False))
    backend.add_special_tokens(["</s>", "<unk>"])
    backend.decoder = decoders.Metaspace()
    tokenizer = HFTokenizer(backend, {"eos_token": "</s>"})
    with pytest.raises(InvalidRequest, match="cannot encode as plain text"):
        tokenizer.encode_chat(ChatPrompt("a</s>", frozenset({1})))


def test_the_longest_special_token_wins_and_a_literal_one_does_not_hide_the_next() -> None:
    pattern = special_pattern(["<s>", "<s>>", "s><"])
    assert list(split_special("a<s>>b", pattern, frozenset())) == [("a", False), ("<s>>", True), ("b", False)]
    assert list(split_special("<s><s>", pattern, frozenset({0, 1}))) == [("<s>", False), ("<s>", True)]
    assert list(split_special("<s><e>", special_pattern(["<s>", "<e>", "<s><e>"]), frozenset({0}))) == [
        ("<s>", False),
        ("<e>", True),
    ]
    assert list(split_special("abc", special_pattern([]), frozenset())) == [("abc", False)]


def test_only_a_vocabulary_with_byte_fallback_has_fallback_bytes() -> None:
    llama2, qwen = tokenizer_of("llama2"), tokenizer_of("qwen")
    assert llama2.token_text(3 + 0xE4) == "<0xE4>"
    assert llama2.fallback_byte(3 + 0xE4) == 0xE4
    assert llama2.fallback_byte(1) is None
    assert not any(qwen.fallback_byte(token_id) is not None for token_id in range(qwen.vocab_size))


@pytest.mark.share(2)
@pytest.mark.parametrize("char", ["a", " ", "\n", "\x00", "\u200b", "\u0301", "中", "<"])
@pytest.mark.parametrize("style", STYLES)
def test_a_long_run_of_one_character_is_encoded_whole(style: str, char: str) -> None:
    text = char * ((2**20 if FULL else 2**17) // len(char.encode()))
    tokenizer = tokenizer_of(style)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)).lstrip(" ") == text.lstrip(" ")


@for_each("tokenizer", all_tokenizers())
def test_a_plain_text_has_no_special_tokens(tokenizer: Tokenizer) -> None:
    special = [spelled for spelled in tokenizer.special_tokens if spelled]
    text = "a" + "b".join(special) + "".join(special)
    ids = tokenizer.encode_chat(plain_text(text, tokenizer))
    assert not set(ids) & set(tokenizer.special_tokens.values())
    assert plain_text("a b", tokenizer) == ChatPrompt("a b")


def test_the_first_id_that_is_another_token_is_found() -> None:
    one, other = build_tokenizer("qwen")[0], build_tokenizer("qwen")[0]
    size = one.get_vocab_size()
    other.add_tokens(["<more>"])
    smaller, larger = HFTokenizer(one), HFTokenizer(other)
    assert first_difference(smaller, smaller) is None and first_difference(smaller, larger) is None
    assert first_difference(larger, smaller) == size
    assert first_difference(smaller, tokenizer_of("gemma")) == 0
