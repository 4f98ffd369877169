"""Structures: grammars of requests, compiled in threads beside the engine; what was found out is kept.

request ──► thread: known? ──► Checker (a process) ──► compile ──► a Grammar for each choice
                     └────────────────────────────────────────────┘
"""

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from chairlift.core.errors import InvalidRequest, StructuredOutputFailed
from chairlift.core.request import GenerateRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.compile_sandbox import CompileSandbox, SandboxKilled
from chairlift.engine.structured.grammar import BITS, Grammar, short_message
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_source import make_matcher, make_tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

THREADS = 2
"""A grammar that has to be killed keeps one of them for a second; others go on."""

MAX_CACHED = 128
MAX_KEPT_CHARS = 1 << 20
"""Of the structures of which it is remembered what came of them."""

KILLED_SECONDS = 60.0
"""How long it is remembered that a grammar took too long: the machine may have been busy."""


class _CachedResult(NamedTuple):
    """What came of a structure: its source, or why there is none, and how long that holds.

    A matcher is not kept: its copies share the states of its lexer, whose number is limited, so that what one request
    wrote could fail another one.
    """

    source: str = ""
    refusal: str = ""
    until: float = inf


class GrammarCompiler:
    """Owns the threads, their checkers, and what was found out about structures. Safe to use from any thread."""

    def __init__(self, vocabulary: GrammarTokenizer, vocab_size: int) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._kept: OrderedDict[StructuredOutput, _CachedResult] = OrderedDict()
        self._checkers: list[CompileSandbox] = []
        self._own = threading.local()
        self._making = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._refusal = ""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="chairlift-grammars")
        self._quick = ThreadPoolExecutor(1, thread_name_prefix="chairlift-known")

    def tokenizer(self) -> "LLTokenizer":
        """Return what every grammar needs, made once.

        That takes a second for 150,000 tokens, in which no thread of this process does anything else: a good time is
        while there is nothing to do. Raises InvalidRequest for a vocabulary that grammars cannot be followed with,
        which is not tried again, and StructuredOutputFailed where there is no memory for it now.
        """
        with self._making:
            if self._tokenizer is None and not self._refusal:
                try:
                    self._tokenizer = make_tokenizer(self._vocabulary, self._vocab_size)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except MemoryError as error:
                    raise StructuredOutputFailed("there is no memory left for the tokenizer's grammars") from error
                except BaseException as error:  # the library panics too, and that is no Exception
                    self._refusal = (
                        f"structured: no output of this model's tokenizer can have one: {short_message(str(error))}"
                    )
            if self._tokenizer is None:
                raise InvalidRequest(self._refusal, param="structured")
            return self._tokenizer

    def compile_request(self, request: GenerateRequest) -> "Future[tuple[Grammar, ...]]":
        """Have the grammars of a request's choices made, each where its choice resumes.

        The future raises InvalidRequest for a structure that means nothing or costs too much, and for tokens to resume
        from that do not follow it; StructuredOutputFailed where following them costs too much. What is known already
        does not
        wait behind what is not. Raises RuntimeError when there can be no thread for it.
        """
        structured = request.params.structured
        assert structured is not None, "only structured requests have a grammar"
        threads = self._threads if self._known(structured) is None else self._quick
        return threads.submit(self._prepared, request, structured)

    def close(self) -> None:
        """Stop; what is not begun is cancelled, and what is compiled now is killed."""
        for threads in (self._threads, self._quick):
            threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            checkers = self._checkers[:]
        for checker in checkers:
            checker.close()
        for threads in (self._threads, self._quick):
            threads.shutdown()
        for checker in self._checkers:  # and who came meanwhile
            checker.kill()

    def _prepared(self, request: GenerateRequest, structured: StructuredOutput) -> tuple[Grammar, ...]:
        tokenizer = self.tokenizer()
        known = self._known(structured)
        if known is None:
            try:
                known = _CachedResult(source=self._checked(structured))
            except SandboxKilled as error:
                known = _CachedResult(refusal=str(error), until=time.monotonic() + KILLED_SECONDS)
            except InvalidRequest as error:
                known = _CachedResult(refusal=error.message)
            self._keep(structured, known)
        if known.refusal:
            raise InvalidRequest(known.refusal, param="structured")
        matcher = make_matcher(known.source, tokenizer)
        if matcher.is_error():
            said_of_it = short_message(matcher.get_error())
            raise InvalidRequest(f"structured.{structured.kind}: {said_of_it}", param="structured")
        first = Grammar(matcher, -(-tokenizer.vocab_size // BITS))
        grammars = [first, *(first.copy() for _ in range(1, request.params.num_choices))]
        return tuple(_begun(grammar, request, index) for index, grammar in enumerate(grammars))

    def _checked(self, structured: StructuredOutput) -> str:
        checker = self._checker()
        try:
            return checker.check(structured)
        finally:
            with suppress(OSError):  # what was found out counts more
                checker.start()  # the next one does not wait for it

    def _checker(self) -> CompileSandbox:
        """Return this thread's own."""
        if not hasattr(self._own, "checker"):
            self._own.checker = CompileSandbox(self._vocabulary, self._vocab_size)
            with self._lock:
                self._checkers.append(self._own.checker)
        checker: CompileSandbox = self._own.checker
        return checker

    def _known(self, structured: StructuredOutput) -> "_CachedResult | None":
        with self._lock:
            known = self._kept.get(structured)
            if known is None:
                return None
            if known.until < time.monotonic():
                del self._kept[structured]
                return None
            self._kept.move_to_end(structured)
            return known

    def _keep(self, structured: StructuredOutput, known: "_CachedResult") -> None:
        with self._lock:
            self._kept[structured] = known
            while len(self._kept) > MAX_CACHED or (
                len(self._kept) > 1 and sum(each.size for each in self._kept) > MAX_KEPT_CHARS
            ):
                self._kept.popitem(last=False)


def _begun(grammar: Grammar, request: GenerateRequest, index: int) -> Grammar:
    """Let the grammar of a choice go on where that was."""
    tokens = request.resumed_tokens(index)
    if tokens and tokens[-1] in request.all_stop_token_ids:
        tokens = tokens[:-1]
    return grammar.resumed(tokens) if tokens else grammar
