"""Ids to text while they come: one Detokenizer a request, little work a token, no half characters.

The text of a token depends on its neighbours: a leading space belongs to the second word and not to the first, and a
character may be cut into several tokens. So a short window of ids is decoded again with what comes and only what is new
is said (as Hugging Face text-generation-inference and vLLM do with their prefix and read offsets):

    window  [ a few ids said already │ ids whose text is not certain ]
    text    decode(window) = said ...│ new ...│ held

Held back are: the last U+FFFD of a text (it may be the beginning of a character), and a whole run of byte-fallback
tokens, for the decoders of such vocabularies turn every byte of the run into U+FFFD when any part of it is not UTF-8.
The library's own `DecodeStream` (tokenizers 0.23) was tried: it never flushes what is broken, and works through it in
quadratic time.
"""

import codecs
from collections.abc import Sequence

from chairlift.core.errors import DetokenizeFailed
from chairlift.text.tokenizer import Tokenizer

CONTEXT = 4  # ids that stay in the window; a UTF-8 character has at most 4 bytes, a token at least one
MAX_WINDOW = 12  # the window is cut back to CONTEXT when it has grown to this
MAX_BYTE_RUN = 32  # byte-fallback tokens that are held back
PROMPT_SEARCH = 256  # ids at the prompt's end among which a starting context is looked for
BROKEN = "�"


class Detokenizer:
    """Incremental text of one request's output.

    The deltas put together equal `tokenizer.decode(all ids, skip_special_tokens)`; with `prompt_token_ids`, they equal
    `decode(prompt + output)` without its beginning `decode(prompt)`, wherever the prompt ends with a whole character
    (else the output is decoded as if the prompt's half character were not there).
    One exception: a run of more than MAX_BYTE_RUN byte-fallback tokens is said as far as it is valid UTF-8, and what
    breaks in it later cannot turn that into U+FFFD any more.

    Not thread-safe. Owns its window of ids; keeps neither the text nor the ids it has said.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, prompt_token_ids: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = frozenset(tokenizer.special_tokens.values()) if skip_special_tokens else frozenset[int]()
        self._skip = skip_special_tokens
        self._window = self._starting_context(prompt_token_ids)
        self._said = len(self._decode(self._window))  # characters of decode(window) that are out
        self._run = 0  # byte-fallback tokens at the window's end
        self._run_is_broken = False
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._done = False

    def push(self, token_ids: Sequence[int]) -> str:
        """Take new ids; return the text that is certain now.

        Raises DetokenizeFailed when the tokenizer raises; the Detokenizer cannot be used after that.
        """
        assert not self._done, "ids were pushed after finish()"
        said, whole = [], []  # tokens that are no bytes are decoded together
        for token_id in token_ids:
            if not self._has_text(token_id):
                continue
            byte = self._tokenizer.fallback_byte(token_id)
            if byte is None:
                whole.append(token_id)
                continue
            if whole:
                said.append(self._push_whole(whole))
                whole = []
            said.append(self._push_byte(token_id, byte))
        if whole:
            said.append(self._push_whole(whole))
        return "".join(said)

    def finish(self) -> str:
        """Return what was held back; half characters come out as U+FFFD. Nothing may be pushed any more.

        Raises DetokenizeFailed as `push` does.
        """
        self._done = True
        return self._decode(self._window)[self._said :]

    def _push_whole(self, token_ids: list[int]) -> str:
        """Take tokens that are no bytes of the fallback."""
        self._window += token_ids
        self._run, self._run_is_broken = 0, False
        text = self._decode(self._window)
        held = int(text.endswith(BROKEN))
        new = text[self._said : len(text) - held]
        self._said = max(self._said, len(text) - held)
        if len(self._window) >= MAX_WINDOW:
            self._window = self._window[-CONTEXT:]
            self._said = len(self._decode(self._window)) - held
        return new

    def _push_byte(self, token_id: int, byte: int) -> str:
        """Hold the byte back, or say the run when it is broken or too long."""
        self._window.append(token_id)
        if self._run_is_broken:
            new = self._decode(self._window)[self._said :]
            self._window.pop()  # what broke the run stays, so that what follows stays broken
            return new
        if not self._run:
            self._utf8.reset()
        self._run += 1
        try:
            self._utf8.decode(bytes([byte]))
        except UnicodeDecodeError:
            self._run_is_broken = True
            new = self._decode(self._window)[self._said :]
            self._window = self._window[-CONTEXT:]  # the lead byte and what does not continue it are at most 3 apart
            self._said = len(self._decode(self._window))
            return new
        return self._say_whole_characters() if self._run > MAX_BYTE_RUN else ""

    def _say_whole_characters(self) -> str:
        """Say the run but its last, half character, which becomes a run of its own."""
        half = len(self._utf8.getstate()[0])
        before, run = self._window[: -self._run], self._window[-self._run :]
        new = self._decode(before + run[: self._run - half])[self._said :]
        context = before[-CONTEXT:]
        self._window, self._run = context + run[self._run - half :], half
        self._said = len(self._decode(context))
        return new

    def _starting_context(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """Take the prompt's last token that is whole text by itself, so that the output is not the text's beginning."""
        for token_id in reversed(prompt_token_ids[-PROMPT_SEARCH:]):
            if self._has_text(token_id) and BROKEN not in self._decode([token_id]):
                return [token_id]
        return []

    def _has_text(self, token_id: int) -> bool:
        """Tell what the decoder leaves out before it starts: skipped special tokens and ids without a token."""
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
