"""GrammarCompiler: compiles grammars beside the engine, caches them and evicts them."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from chairlift.core.errors import InvalidRequest, StructuredOutputFailed
from chairlift.core.request import GenerateRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured import grammar_compiler, llguidance_adapter
from chairlift.engine.structured.compile_sandbox import SandboxKilled
from chairlift.engine.structured.grammar_compiler import GrammarCompiler
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from support_engine import make_request
from support_grammars import EOS, VOCAB_SIZE, VOCABULARY, allowed_tokens


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    created = GrammarCompiler(VOCABULARY, VOCAB_SIZE)
    yield created
    created.close()


@pytest.fixture
def vocab_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the vocabulary size of each llguidance tokenizer that is built."""
    vocab_sizes: list[int] = []

    def counted(*args: Any) -> Any:
        vocab_sizes.append(VOCAB_SIZE)
        return llguidance_adapter.make_tokenizer(*args)

    monkeypatch.setattr(grammar_compiler, "make_tokenizer", counted)
    return vocab_sizes


def structured(n: int = 1, resume: tuple[tuple[int, ...], ...] = (), **structure: object) -> GenerateRequest:
    request = make_request("a", 3, 20, n=n)
    params = replace(request.params, structured=StructuredOutput(**structure))
    return replace(request, params=params, resume=resume, eos_token_ids=(257,))


def test_each_choice_gets_one_where_it_resumes(compiler: GrammarCompiler) -> None:
    request = structured(n=3, regex="[ab]+c", resume=((97,), (97, 99, 257), ()))
    first, second, third = compiler.compile_request(request).result()
    assert allowed_tokens(first) == allowed_tokens(third) | {99}
    assert second.is_terminated and not first.is_terminated


def test_tokens_that_do_not_follow_are_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequest, match="is not allowed by the grammar"):
        compiler.compile_request(structured(regex="ab", resume=((98,),))).result()


def test_a_structure_is_compiled_once(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.compile_request(structured(regex="a+")).result()
    monkeypatch.setattr(GrammarCompiler, "_check", None)
    compiler.compile_request(structured(regex="a+", n=4)).result()


@pytest.mark.full
def test_what_one_request_wrote_does_not_count_against_the_next(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of a matcher share its lexer states, whose number is limited."""
    monkeypatch.setitem(llguidance_adapter.LIMITS, "max_lexer_states", 300)
    request = structured(regex="([ab]*a[ab]{14}c){1,40}")
    num_tokens = []
    for seed in range(40):
        (grammar,) = compiler.compile_request(request).result()
        pick = random.Random(seed).choice
        count = 0
        for _ in range(60):
            try:
                grammar.advance(pick(sorted(allowed_tokens(grammar) - {EOS})))
            except StructuredOutputFailed:
                break
            count += 1
        num_tokens.append(count)
    assert max(num_tokens) < 60 or min(num_tokens) == 60, "the limit was not met, or not by all"
    assert min(num_tokens) >= 5, num_tokens


def test_what_every_grammar_needs_is_made_once_and_for_the_first(
    compiler: GrammarCompiler, vocab_sizes: list[int]
) -> None:
    assert not vocab_sizes
    for number in range(4):
        compiler.compile_request(structured(regex=f"a{{{number}}}")).result()
    assert compiler.tokenizer() is compiler.tokenizer() and len(vocab_sizes) == 1


def test_a_vocabulary_that_no_grammar_can_be_followed_with_is_refused_and_no_process_is_asked(
    compiler: GrammarCompiler, vocab_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_vocabulary", GrammarTokenizer(b"{}", ()))
    for number in range(3):
        with pytest.raises(InvalidRequest, match="not possible with this model's tokenizer"):
            compiler.compile_request(structured(regex=f"a{{{number}}}")).result()
    assert len(vocab_sizes) == 1 and not compiler._sandboxes


def test_a_vocabulary_that_the_library_panics_at_is_refused_too() -> None:
    tokenizer = Tokenizer.from_str(VOCABULARY.tokenizer_json.decode())
    tokenizer.add_tokens(["x" * 2000])
    compiler = GrammarCompiler(GrammarTokenizer(tokenizer.to_str().encode(), (EOS,)), VOCAB_SIZE + 10)
    try:
        with pytest.raises(InvalidRequest, match="not possible with this model's tokenizer"):
            compiler.compile_request(structured(regex="a")).result()
    finally:
        compiler.close()


def test_what_there_was_no_memory_for_is_tried_again(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*args: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(grammar_compiler, "make_tokenizer", no_memory)
        with pytest.raises(StructuredOutputFailed, match="not enough memory"):
            compiler.compile_request(structured(regex="a")).result()
    assert compiler.compile_request(structured(regex="a")).result()


def test_a_refusal_is_remembered_too(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="unclosed"):
            compiler.compile_request(structured(regex="((")).result()
        monkeypatch.setattr(GrammarCompiler, "_check", None)


def test_a_grammar_that_took_too_long_may_try_again_later(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def killed(self: GrammarCompiler, structured: StructuredOutput) -> None:
        calls.append(structured)
        raise SandboxKilled("it takes more than 0.8 s of processor time")

    monkeypatch.setattr(GrammarCompiler, "_check", killed)
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="takes more than"):
            compiler.compile_request(structured(regex="a+")).result()
    assert len(calls) == 1
    monkeypatch.setattr(grammar_compiler, "KILLED_TTL_SECONDS", -1.0)
    compiler._cache.clear()
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="takes more than"):
            compiler.compile_request(structured(regex="a+")).result()
    assert len(calls) == 3


def test_what_is_known_does_not_wait_behind_what_is_not(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.compile_request(structured(regex="a+")).result()
    gate = threading.Event()
    monkeypatch.setattr(GrammarCompiler, "_check", lambda self, structured: gate.wait(20))
    stuck = [compiler.compile_request(structured(regex="b" * number)) for number in range(1, 9)]
    try:
        assert compiler.compile_request(structured(regex="a+")).result(timeout=10)
        assert not any(future.done() for future in stuck)
    finally:
        gate.set()


def test_what_is_kept_is_bounded(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "MAX_CACHED", 3)
    for number in range(10):
        compiler.compile_request(structured(regex=f"a{{{number}}}")).result()
    assert len(compiler._cache) == 3
    monkeypatch.setattr(grammar_compiler, "MAX_CACHED_CHARS", 100)
    compiler.compile_request(structured(regex="b" * 99)).result()
    assert len(compiler._cache) == 1
