"""Detokenizer: the joined deltas of any ids, however split, equal the whole text, for every kind of tokenizer."""

from collections.abc import Sequence
from functools import cache
from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from chairlift.core.errors import DetokenizeFailed
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.detokenizer import MAX_BYTE_RUN, Detokenizer
from chairlift.text.tokenizer import HFTokenizer, Tokenizer
from support_shares import FULL
from support_text import STYLES, tokenizer_of

TRICKY = [
    "Hello world", "  leading and   inner  ", "naïve Ünïcödé", "中文字符 文字",
    "👩‍👩‍👧‍👦 emoji 👍🏽 🇩🇪", "e\u0301 a\u0308\u0323",
    "a\u200bb\u200d", "\ufffd real \ufffd", "\n\n\t x", "ไทยแลนด์", "مرحبا", "\x00\x01", "𝕏𝕐", "",
]  # fmt: skip


def word_piece_tokenizer() -> HFTokenizer:
    vocabulary = ["[UNK]", "un", "##able", "##s", "lift", ".", ",", "'", "do", "n't", "[SEP]"]
    backend = Backend(models.WordPiece({token: index for index, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece(cleanup=True)
    backend.add_special_tokens(["[SEP]"])
    return HFTokenizer(backend)


def suffix_tokenizer() -> HFTokenizer:
    vocabulary = ["<unk>", "lo", "low</w>", "er</w>", "new", "est</w>"]
    backend = Backend(models.BPE({token: index for index, token in enumerate(vocabulary)}, [], unk_token="<unk>"))
    backend.decoder = decoders.BPEDecoder()
    return HFTokenizer(backend)


TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(), **{style: tokenizer_of(style) for style in STYLES},
    "word_piece": word_piece_tokenizer(), "suffixed": suffix_tokenizer(),
}  # fmt: skip
every_tokenizer = pytest.mark.parametrize("tokenizer", list(TOKENIZERS.values()), ids=list(TOKENIZERS))


def stream_decode(
    tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int], skip: bool, prompt: Sequence[int] = ()
) -> str:
    detokenizer = Detokenizer(tokenizer, skip, prompt)
    ends = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    deltas = [detokenizer.push(ids[start:end]) for start, end in pairwise(ends)]
    return "".join(deltas) + detokenizer.finish()


def cuts_everywhere(ids: Sequence[int]) -> list[int]:
    return list(range(len(ids)))


def longest_byte_run(tokenizer: Tokenizer, ids: Sequence[int], skip: bool) -> int:
    skipped = set(tokenizer.special_tokens.values()) if skip else set()
    visible = [i for i in ids if i not in skipped and tokenizer.token_text(i) is not None]
    runs = groupby(tokenizer.fallback_byte(token_id) is not None for token_id in visible)
    return max((len(list(run)) for is_byte, run in runs if is_byte), default=0)


@every_tokenizer
@given(draw=st.data(), cuts=st.lists(st.integers(0, 40), max_size=10), skip=st.booleans())
@settings(max_examples=150 if FULL else 15, deadline=None)
def test_deltas_of_random_ids_are_the_text_of_all_of_them(
    tokenizer: Tokenizer, draw: st.DataObject, cuts: list[int], skip: bool
) -> None:
    ids = draw.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40))
    if longest_byte_run(tokenizer, ids, skip) <= MAX_BYTE_RUN:
        assert stream_decode(tokenizer, ids, cuts, skip) == tokenizer.decode(ids, skip)
        assert stream_decode(tokenizer, ids, cuts_everywhere(ids), skip) == tokenizer.decode(ids, skip)


@pytest.mark.full
@pytest.mark.parametrize("style", ["bytes", *STYLES])
@given(draw=st.data(), cuts=st.lists(st.integers(0, 60), max_size=10))
@settings(max_examples=100, deadline=None)
def test_deltas_of_bytes_near_utf8_are_the_text_of_all_of_them(
    style: str, draw: st.DataObject, cuts: list[int]
) -> None:
    """Bytes of characters are cut, repeated and mixed with whole tokens, so that U+FFFD appears and disappears."""
    tokenizer = TOKENIZERS[style]
    id_of_byte = byte_ids_of(style)
    bytes_ = st.sampled_from(
        [
            [id_of_byte[b] for b in part]
            for part in (b"\xf0\x9f", b"\x98\x80", b"\xe4\xb8\xad", b"\xe4", b"a", b"\xff", b" ")
        ]
    )
    whole_tokens = st.sampled_from([tokenizer.encode(text, False) for text in ("a", " x", "中")])
    ids = [i for part in draw.draw(st.lists(st.one_of(bytes_, bytes_, whole_tokens), max_size=16)) for i in part]
    if longest_byte_run(tokenizer, ids, True) <= MAX_BYTE_RUN:
        assert stream_decode(tokenizer, ids, cuts, True) == tokenizer.decode(ids, True)
        assert stream_decode(tokenizer, ids, cuts_everywhere(ids), True) == tokenizer.decode(ids, True)


@cache
def byte_ids_of(style: str) -> dict[int, int]:
    """Byte -> the id of the token that is this byte."""
    tokenizer = TOKENIZERS[style]
    bytes_ = {i: tokenizer.fallback_byte(i) for i in range(tokenizer.vocab_size)}
    if not any(byte is not None for byte in bytes_.values()):
        bytes_ = {i: single_byte(tokenizer, i) for i in range(tokenizer.vocab_size)}
    return {byte: i for i, byte in bytes_.items() if byte is not None}


def single_byte(tokenizer: Tokenizer, token_id: int) -> int | None:
    """The byte of a token that is one byte, for byte-level vocabularies and for ByteTokenizer."""
    text = tokenizer.token_text(token_id)
    if text is None or len(text) != 1:
        return None
    if isinstance(tokenizer, ByteTokenizer):
        return token_id
    unchanged = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's bytes_to_unicode
    moved = [byte for byte in range(256) if byte not in unchanged]
    return ord(text) if ord(text) < 256 and ord(text) in unchanged else moved[ord(text) - 256]


@pytest.mark.share(30)
@every_tokenizer
@pytest.mark.parametrize("text", TRICKY)
def test_real_text_comes_out_as_it_went_in(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=True)
    for skip in (True, False):
        if longest_byte_run(tokenizer, ids, skip) <= MAX_BYTE_RUN:
            assert stream_decode(tokenizer, ids, cuts_everywhere(ids), skip) == tokenizer.decode(ids, skip)


@pytest.mark.share(2)
@pytest.mark.parametrize("style", ["bytes", *STYLES])
@given(draw=st.data(), skip=st.booleans())
@settings(max_examples=100, deadline=None)
def test_behind_a_prompt_the_text_is_what_it_adds_to_the_prompt(style: str, draw: st.DataObject, skip: bool) -> None:
    tokenizer = TOKENIZERS[style]
    text = draw.draw(st.sampled_from([text for text in TRICKY if text]))
    ids = tokenizer.encode(text, add_special_tokens=False)
    cut = draw.draw(st.integers(1, len(ids)))
    prompt, output = ids[:cut], ids[cut:]
    before = tokenizer.decode(prompt, skip)
    if "\ufffd" not in before and longest_byte_run(tokenizer, output, skip) <= MAX_BYTE_RUN:
        assert before + stream_decode(tokenizer, output, cuts_everywhere(output), skip, prompt) == tokenizer.decode(
            ids, skip
        )


@pytest.mark.parametrize("style", ["llama2", "mistral"])
def test_the_first_word_behind_a_prompt_keeps_its_space(style: str) -> None:
    tokenizer = tokenizer_of(style)
    prompt = tokenizer.encode("Hello")
    output = tokenizer.encode("Hello world")[len(prompt) :]
    assert stream_decode(tokenizer, output, [], True, prompt) == " world"
    assert stream_decode(tokenizer, output, [], True) == "world"


def test_a_half_character_is_held_back_and_said_when_it_is_whole() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    emitted = [detokenizer.push([byte]) for byte in "a😀b".encode()]
    assert emitted == ["a", "", "", "", "😀", "b"]
    assert detokenizer.finish() == ""


def test_a_half_character_at_the_end_comes_out_at_finish() -> None:
    for style in ("bytes", "llama2"):
        tokenizer = TOKENIZERS[style]
        offset = 3 if style == "llama2" else 0  # <unk>, <s>, </s> come first
        detokenizer = Detokenizer(tokenizer)
        assert detokenizer.push([0xE4 + offset]) == ""
        assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("style", ["bytes", "qwen", "llama2"])
def test_broken_bytes_come_out_while_they_come(style: str) -> None:
    """The detokenizer holds at most one character of an endless broken run."""
    tokenizer = TOKENIZERS[style]
    broken = byte_ids_of(style)[0x80]
    detokenizer = Detokenizer(tokenizer)
    emitted = 0
    for count in range(1, 500):
        emitted += len(detokenizer.push([broken]))
        assert emitted >= count - 1
    assert emitted + len(detokenizer.finish()) == 499


@pytest.mark.parametrize("broken", [b"\xffa", b"\xe4a", b"\xf0\x9f\x98 ", b"\x80", b"abc\xe4\xb8b"])
def test_a_broken_run_stays_broken_to_its_end(broken: bytes) -> None:
    tokenizer = tokenizer_of("llama2")
    run = [3 + byte for byte in b"x" + broken + "中 is whole".encode()]
    ids = [*tokenizer.encode("Hello", False), *run, *tokenizer.encode("world", False)]
    assert stream_decode(tokenizer, ids, cuts_everywhere(ids), True) == tokenizer.decode(ids)


@pytest.mark.parametrize("text", ["ኢትዮጵያ" * 20 + "!", "xé" * 40, "é" * 50, "ab😀" * 20, "😀" * 20])
def test_a_long_run_of_fallback_bytes_is_said_character_by_character_in_the_end(text: str) -> None:
    tokenizer = tokenizer_of("llama2")
    ids = [3 + byte for byte in text.encode()]
    detokenizer = Detokenizer(tokenizer, prompt_token_ids=[1])
    deltas = [detokenizer.push([token_id]) for token_id in ids]
    assert "".join(deltas) + detokenizer.finish() == text
    assert sum(map(bool, deltas)) >= len(ids) // (MAX_BYTE_RUN + 1) - 1


def test_what_breaks_behind_a_long_run_leaves_what_was_said() -> None:
    tokenizer = tokenizer_of("llama2")
    valid = "中" * 20
    ids = [*(3 + byte for byte in valid.encode()), 3 + 0xFF]
    assert stream_decode(tokenizer, ids, cuts_everywhere(ids), True).startswith("中" * 10)


def test_endless_special_tokens_leave_nothing_behind() -> None:
    tokenizer = tokenizer_of("llama2")
    detokenizer = Detokenizer(tokenizer)
    token_ids = tokenizer.encode("Hello", add_special_tokens=False)
    assert detokenizer.push(token_ids) == "Hello"
    assert detokenizer.push([2] * 10_000) == ""
    assert detokenizer.push(tokenizer.encode("world", False)) == " world"


@pytest.mark.full
@given(st.lists(st.integers(0, 490), min_size=200, max_size=300))
@settings(max_examples=20, deadline=None)
def test_the_window_stays_short(ids: list[int]) -> None:
    for style in STYLES:
        longest = 0
        tokenizer = Spy(tokenizer_of(style))
        detokenizer = Detokenizer(tokenizer)
        for token_id in ids:
            detokenizer.push([token_id])
            longest = max(longest, *tokenizer.decoded, 0)
            tokenizer.decoded.clear()
        assert longest <= MAX_BYTE_RUN + 16


class Spy:
    """A tokenizer that records the number of ids of each call."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer
        self.decoded: list[int] = [0]

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.decoded.append(len(token_ids))
        return self._tokenizer.decode(token_ids, skip_special_tokens)


class Raising(ByteTokenizer):
    """Cannot decode the byte 7."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        if 7 in token_ids:
            raise RuntimeError("seven")
        return super().decode(token_ids, skip_special_tokens)


def test_a_tokenizer_that_raises_ends_as_a_typed_error() -> None:
    detokenizer = Detokenizer(Raising())
    assert detokenizer.push([97]) == "a"
    with pytest.raises(DetokenizeFailed, match="seven"):
        detokenizer.push([7])
    with pytest.raises(DetokenizeFailed):
        Detokenizer(tokenizer_of("qwen")).push([-1])


def test_nothing_may_follow_finish() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    detokenizer.finish()
    with pytest.raises(AssertionError, match="after finish"):
        detokenizer.push([97])
