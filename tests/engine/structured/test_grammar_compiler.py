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
from chairlift.engine.structured import grammar_compiler, llguidance_source
from chairlift.engine.structured.compile_sandbox import SandboxKilled
from chairlift.engine.structured.grammar_compiler import GrammarCompiler
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from support_engine import make_request
from support_structure import EOS, VOCAB_SIZE, VOCABULARY, allowed


@pytest.fixture
def structures() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY, VOCAB_SIZE)
    yield made
    made.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of tokens of each tokenizer view that is made."""
    made: list[int] = []

    def counted(*args: Any) -> Any:
        made.append(VOCAB_SIZE)
        return llguidance_source.make_tokenizer(*args)

    monkeypatch.setattr(grammar_compiler, "make_tokenizer", counted)
    return made


def structured(n: int = 1, resume: tuple[tuple[int, ...], ...] = (), **structure: object) -> GenerateRequest:
    made = make_request("a", 3, 20, n=n)
    params = replace(made.params, structured=StructuredOutput(**structure))
    return replace(made, params=params, resume=resume, eos_token_ids=(257,))


def test_each_choice_gets_one_where_it_resumes(structures: GrammarCompiler) -> None:
    request = structured(n=3, regex="[ab]+c", resume=((97,), (97, 99, 257), ()))
    first, second, third = structures.compile_request(request).result()
    assert allowed(first) == allowed(third) | {99}
    assert second.is_terminated and not first.is_terminated


def test_tokens_that_do_not_follow_are_refused(structures: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequest, match="does not follow the structure"):
        structures.compile_request(structured(regex="ab", resume=((98,),))).result()


def test_a_structure_is_compiled_once(structures: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    structures.compile_request(structured(regex="a+")).result()
    monkeypatch.setattr(GrammarCompiler, "_checked", None)
    structures.compile_request(structured(regex="a+", n=4)).result()


def test_what_one_request_wrote_does_not_count_against_the_next(
    structures: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of a matcher share its lexer states, whose number is limited."""
    monkeypatch.setitem(llguidance_source.LIMITS, "max_lexer_states", 300)
    request = structured(regex="([ab]*a[ab]{14}c){1,40}")
    written = []
    for seed in range(40):
        (grammar,) = structures.compile_request(request).result()
        pick = random.Random(seed).choice
        count = 0
        for _ in range(60):
            try:
                grammar.advance(pick(sorted(allowed(grammar) - {EOS})))
            except StructuredOutputFailed:
                break
            count += 1
        written.append(count)
    assert max(written) < 60 or min(written) == 60, "the limit was not met, or not by all"
    assert min(written) >= 5, written


def test_what_every_grammar_needs_is_made_once_and_for_the_first(structures: GrammarCompiler, made: list[int]) -> None:
    assert not made
    for number in range(4):
        structures.compile_request(structured(regex=f"a{{{number}}}")).result()
    assert structures.tokenizer() is structures.tokenizer() and len(made) == 1


def test_a_vocabulary_that_no_grammar_can_be_followed_with_is_refused_and_no_process_is_asked(
    structures: GrammarCompiler, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structures, "_vocabulary", GrammarTokenizer(b"{}", ()))
    for number in range(3):
        with pytest.raises(InvalidRequest, match="no output of this model's tokenizer can have one"):
            structures.compile_request(structured(regex=f"a{{{number}}}")).result()
    assert len(made) == 1 and not structures._checkers


def test_a_vocabulary_that_the_library_panics_at_is_refused_too() -> None:
    written = Tokenizer.from_str(VOCABULARY.tokenizer_json.decode())
    written.add_tokens(["x" * 2000])
    structures = GrammarCompiler(GrammarTokenizer(written.to_str().encode(), (EOS,)), VOCAB_SIZE + 10)
    try:
        with pytest.raises(InvalidRequest, match="no output of this model's tokenizer can have one"):
            structures.compile_request(structured(regex="a")).result()
    finally:
        structures.close()


def test_what_there_was_no_memory_for_is_tried_again(
    structures: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*args: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(grammar_compiler, "make_tokenizer", none_left)
        with pytest.raises(StructuredOutputFailed, match="no memory left"):
            structures.compile_request(structured(regex="a")).result()
    assert structures.compile_request(structured(regex="a")).result()


def test_a_refusal_is_remembered_too(structures: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="unclosed"):
            structures.compile_request(structured(regex="((")).result()
        monkeypatch.setattr(GrammarCompiler, "_checked", None)


def test_a_grammar_that_took_too_long_may_try_again_later(
    structures: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def killed(self: GrammarCompiler, structured: StructuredOutput) -> None:
        calls.append(structured)
        raise SandboxKilled("it takes longer than 0.8 s")

    monkeypatch.setattr(GrammarCompiler, "_checked", killed)
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="takes longer"):
            structures.compile_request(structured(regex="a+")).result()
    assert len(calls) == 1
    monkeypatch.setattr(grammar_compiler, "KILLED_SECONDS", -1.0)
    structures._kept.clear()
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="takes longer"):
            structures.compile_request(structured(regex="a+")).result()
    assert len(calls) == 3


def test_what_is_known_does_not_wait_behind_what_is_not(
    structures: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    structures.compile_request(structured(regex="a+")).result()
    gate = threading.Event()
    monkeypatch.setattr(GrammarCompiler, "_checked", lambda self, structured: gate.wait(20))
    stuck = [structures.compile_request(structured(regex="b" * number)) for number in range(1, 9)]
    try:
        assert structures.compile_request(structured(regex="a+")).result(timeout=10)
        assert not any(future.done() for future in stuck)
    finally:
        gate.set()


def test_what_is_kept_is_bounded(structures: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "MAX_CACHED", 3)
    for number in range(10):
        structures.compile_request(structured(regex=f"a{{{number}}}")).result()
    assert len(structures._kept) == 3
    monkeypatch.setattr(grammar_compiler, "MAX_KEPT_CHARS", 100)
    structures.compile_request(structured(regex="b" * 99)).result()
    assert len(structures._kept) == 1
