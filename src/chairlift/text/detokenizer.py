"""Detokenizer: turns the token ids of one choice into text incrementally, without incomplete characters.

The text of a token depends on its neighbours: a leading space belongs to the second word and not to the first, and a
character may span several tokens. So a short window of ids is decoded again with each new id, and only new text is
emitted (as Hugging Face text-generation-inference and vLLM do with their prefix and read offsets):

    window  [ a few ids emitted before  │ ids whose text is not certain ]
    text    decode(window) = emitted ...│ new ...│ held

Held back are: the last U+FFFD of a text (it may be the beginning of a character), and a whole run of byte-fallback
tokens, because the decoders of such vocabularies turn every byte of the run into U+FFFD when any part of it is not
UTF-8. The library's own `DecodeStream` (tokenizers 0.23) was tried: it never flushes invalid bytes and processes them
in quadratic time.
"""

import codecs
from collections.abc import Sequence

from chairlift.core.errors import DetokenizeFailed
from chairlift.text.tokenizer import Tokenizer

CONTEXT = 4  # ids that stay in the window; a UTF-8 character has at most 4 bytes, a token at least one
MAX_WINDOW = 12  # the window is cut back to CONTEXT when it has grown to this
MAX_BYTE_RUN = 32  # byte-fallback tokens that are held back
PROMPT_SEARCH = 256  # ids at the prompt's end to search for a starting context
BROKEN = "�"


class Detokenizer:
    """Incremental text of one choice.

    The joined deltas equal `tokenizer.decode(all ids, skip_special_tokens)`; with `prompt_token_ids`, they equal
    `decode(prompt + output)` without its beginning `decode(prompt)`, when the prompt ends with a complete character
    (otherwise the output is decoded as if the prompt's incomplete character were absent).
    One exception: of a run of more than MAX_BYTE_RUN byte-fallback tokens the valid UTF-8 part is emitted, and a later
    invalid byte cannot turn that part into U+FFFD any more.

    Not thread-safe. Owns its window of ids; keeps neither emitted text nor emitted ids.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, prompt_token_ids: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = frozenset(tokenizer.special_tokens.values()) if skip_special_tokens else frozenset[int]()
        self._skip = skip_special_tokens
        self._window = self._starting_context(prompt_token_ids)
        self._emitted = len(self._decode(self._window))  # number of emitted characters of decode(window)
        self._run = 0  # byte-fallback tokens at the window's end
        self._run_is_broken = False
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._done = False

    def push(self, token_ids: Sequence[int]) -> str:
        """Add new ids; return the text that is certain now.

        Raises DetokenizeFailed when the tokenizer raises; the Detokenizer cannot be used after that.
        """
        assert not self._done, "ids were pushed after finish()"
        parts, whole = [], []  # tokens other than byte-fallback tokens are decoded together
        for token_id in token_ids:
            if not self._has_text(token_id):
                continue
            byte = self._tokenizer.fallback_byte(token_id)
            if byte is None:
                whole.append(token_id)
                continue
            if whole:
                parts.append(self._push_whole(whole))
                whole = []
            parts.append(self._push_byte(token_id, byte))
        if whole:
            parts.append(self._push_whole(whole))
        return "".join(parts)

    def finish(self) -> str:
        """Return the held-back text, incomplete characters as U+FFFD. push() must not be called any more.

        Raises DetokenizeFailed as `push` does.
        """
        self._done = True
        return self._decode(self._window)[self._emitted :]

    def _push_whole(self, token_ids: list[int]) -> str:
        """Add tokens that are not byte-fallback tokens."""
        self._window += token_ids
        self._run, self._run_is_broken = 0, False
        text = self._decode(self._window)
        held = int(text.endswith(BROKEN))
        new = text[self._emitted : len(text) - held]
        self._emitted = max(self._emitted, len(text) - held)
        if len(self._window) >= MAX_WINDOW:
            self._window = self._window[-CONTEXT:]
            self._emitted = len(self._decode(self._window)) - held
        return new

    def _push_byte(self, token_id: int, byte: int) -> str:
        """Hold the byte back, or emit the run when it is invalid or too long."""
        self._window.append(token_id)
        if self._run_is_broken:
            new = self._decode(self._window)[self._emitted :]
            self._window.pop()  # the invalid byte stays in the window, so that the run stays invalid
            return new
        if not self._run:
            self._utf8.reset()
        self._run += 1
        try:
            self._utf8.decode(bytes([byte]))
        except UnicodeDecodeError:
            self._run_is_broken = True
            new = self._decode(self._window)[self._emitted :]
            self._window = self._window[-CONTEXT:]  # the lead byte and the invalid byte are at most 3 apart
            self._emitted = len(self._decode(self._window))
            return new
        return self._emit_whole_characters() if self._run > MAX_BYTE_RUN else ""

    def _emit_whole_characters(self) -> str:
        """Emit the run except its last, incomplete character, which becomes a new run."""
        half = len(self._utf8.getstate()[0])
        before, run = self._window[: -self._run], self._window[-self._run :]
        new = self._decode(before + run[: self._run - half])[self._emitted :]
        context = before[-CONTEXT:]
        self._window, self._run = context + run[self._run - half :], half
        self._emitted = len(self._decode(context))
        return new

    def _starting_context(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """Return the prompt's last complete token, so that the output is not decoded as the start of a text."""
        for token_id in reversed(prompt_token_ids[-PROMPT_SEARCH:]):
            if self._has_text(token_id) and BROKEN not in self._decode([token_id]):
                return [token_id]
        return []

    def _has_text(self, token_id: int) -> bool:
        """Return False for ids that the decoder drops: skipped special tokens and ids without a token."""
        if token_id in self._skipped:
            return False
        try:
            return self._tokenizer.token_text(token_id) is not None
        except Exception as error:
            raise DetokenizeFailed(f"token id {token_id} has no text: {error}", token_id=token_id) from error

    def _decode(self, token_ids: Sequence[int]) -> str:
        try:
            return self._tokenizer.decode(token_ids, self._skip)
        except Exception as error:
            raise DetokenizeFailed(f"{len(token_ids)} tokens cannot be decoded: {error}") from error
