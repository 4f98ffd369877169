"""GrammarCompiler: compiles the grammars of requests in threads, and caches the result of each check.

request ──► thread: cached? ──► CompileSandbox (a process) ──► compile ──► a GrammarMatcher for each choice
                      └───────────────────────────────────────────┘
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
from chairlift.engine.structured.grammar_matcher import BITS, GrammarMatcher, short_message
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_adapter import make_matcher, make_tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

THREADS = 2
"""Compiling threads. A grammar that times out occupies one of them for a second; the other one goes on."""

MAX_CACHED = 128
MAX_CACHED_CHARS = 1 << 20
"""Characters of all structured outputs in the cache together."""

KILLED_TTL_SECONDS = 60.0
"""How long the cache keeps the result of a crash or timeout, which may be due to a busy machine."""


class _CachedResult(NamedTuple):
    """The result of checking a structured output: its source or its error, and when the entry expires.

    The cache holds no matcher: copies of a matcher share its lexer states, whose number is limited, so the output of
    one request could fail another request.
    """

    source: str = ""
    error: str = ""
    expires_at: float = inf


class GrammarCompiler:
    """Owns the compiling threads, their sandboxes and the cache of results. Thread-safe."""

    def __init__(self, vocabulary: GrammarTokenizer, vocab_size: int) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._cache: OrderedDict[StructuredOutput, _CachedResult] = OrderedDict()
        self._sandboxes: list[CompileSandbox] = []
        self._thread_local = threading.local()
        self._tokenizer_lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_error = ""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="chairlift-grammars")
        self._cached_threads = ThreadPoolExecutor(1, thread_name_prefix="chairlift-cached")

    def tokenizer(self) -> "LLTokenizer":
        """Build llguidance's tokenizer in the first call, and return it.

        Building takes a second for 150,000 tokens and holds the GIL, so the first call should come while the engine is
        idle. Raises InvalidRequest for a vocabulary that llguidance does not support, in this and every later call, and
        StructuredOutputFailed if there is too little memory now.
        """
        with self._tokenizer_lock:
            if self._tokenizer is None and not self._tokenizer_error:
                try:
                    self._tokenizer = make_tokenizer(self._vocabulary, self._vocab_size)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except MemoryError as error:
                    raise StructuredOutputFailed(
                        "there is not enough memory to prepare the tokenizer for grammars"
                    ) from error
                except BaseException as error:  # a panic of the library is not an Exception
                    self._tokenizer_error = (
                        f"structured: not possible with this model's tokenizer: {short_message(str(error))}"
                    )
            if self._tokenizer is None:
                raise InvalidRequest(self._tokenizer_error, param="structured")
            return self._tokenizer

    def compile_request(self, request: GenerateRequest) -> "Future[tuple[GrammarMatcher, ...]]":
        """Submit the compilation of a request's grammars: one a choice, advanced by its resumed tokens.

        The future raises InvalidRequest for a grammar that is invalid or exceeds the limits and for resumed tokens that
        it does not allow, StructuredOutputFailed if following them exceeds the limits. Cached grammars have a thread of
        their own, so they do not wait for others. Raises RuntimeError if no thread can be started.
        """
        structured = request.params.structured
        assert structured is not None, "only structured requests have a grammar"
        threads = self._threads if self._cached(structured) is None else self._cached_threads
        return threads.submit(self._compile, request, structured)

    def close(self) -> None:
        """Cancel the waiting compilations, kill the running ones and stop the threads."""
        for threads in (self._threads, self._cached_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            sandboxes = self._sandboxes[:]
        for sandbox in sandboxes:
            sandbox.close()
        for threads in (self._threads, self._cached_threads):
            threads.shutdown()
        for sandbox in self._sandboxes:  # also those that were created meanwhile
            sandbox.kill()

    def _compile(self, request: GenerateRequest, structured: StructuredOutput) -> tuple[GrammarMatcher, ...]:
        tokenizer = self.tokenizer()
        # Asked again in the thread: an equal request before it may have filled the cache meanwhile.
        result = self._cached(structured)
        if result is None:
            try:
                result = _CachedResult(source=self._check(structured))
            except SandboxKilled as error:
                result = _CachedResult(error=str(error), expires_at=time.monotonic() + KILLED_TTL_SECONDS)
            except InvalidRequest as error:
                result = _CachedResult(error=error.message)
            self._cache_result(structured, result)
        if result.error:
            raise InvalidRequest(result.error, param="structured")
        matcher = make_matcher(result.source, tokenizer)
        if matcher.is_error():
            reason = short_message(matcher.get_error())
            raise InvalidRequest(f"structured.{structured.kind}: {reason}", param="structured")
        first = GrammarMatcher(matcher, -(-tokenizer.vocab_size // BITS))
        grammars = [first, *(first.copy() for _ in range(1, request.params.num_choices))]
        return tuple(_resume(grammar, request, index) for index, grammar in enumerate(grammars))

    def _check(self, structured: StructuredOutput) -> str:
        sandbox = self._sandbox()
        try:
            return sandbox.check(structured)
        finally:
            with suppress(OSError):  # the result of check() matters more
                sandbox.start()  # so that the next call does not wait for a new process

    def _sandbox(self) -> CompileSandbox:
        """Return the sandbox of this thread, which is created in the first call."""
        if not hasattr(self._thread_local, "sandbox"):
            self._thread_local.sandbox = CompileSandbox(self._vocabulary, self._vocab_size)
            with self._lock:
                self._sandboxes.append(self._thread_local.sandbox)
        sandbox: CompileSandbox = self._thread_local.sandbox
        return sandbox

    def _cached(self, structured: StructuredOutput) -> _CachedResult | None:
        """Return the cached result unless it has expired, and mark it as used."""
        with self._lock:
            result = self._cache.get(structured)
            if result is None:
                return None
            if result.expires_at < time.monotonic():
                del self._cache[structured]
                return None
            self._cache.move_to_end(structured)
            return result

    def _cache_result(self, structured: StructuredOutput, result: _CachedResult) -> None:
        """Cache a result; evict the least recently used ones beyond the limits."""
        with self._lock:
            self._cache[structured] = result
            while len(self._cache) > MAX_CACHED or (
                len(self._cache) > 1 and sum(each.size for each in self._cache) > MAX_CACHED_CHARS
            ):
                self._cache.popitem(last=False)


def _resume(grammar: GrammarMatcher, request: GenerateRequest, index: int) -> GrammarMatcher:
    """Return the grammar after the tokens that its choice resumes from."""
    tokens = request.resumed_tokens(index)
    if tokens and tokens[-1] in request.all_stop_token_ids:
        tokens = tokens[:-1]
    return grammar.resume(tokens) if tokens else grammar
