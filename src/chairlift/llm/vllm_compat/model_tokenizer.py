"""ModelTokenizer: a model's tokenizer and chat template under the names of transformers' tokenizers."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from chairlift.core.errors import InvalidRequest, ModelError
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.tokenizer import ChatPrompt, Tokenizer

Messages = Sequence[Mapping[str, Any]]


class ModelTokenizer:
    """The tokenizer that an LLM uses, with its chat template; does not need transformers. Thread-safe.

    Attributes:
        name_or_path: name of the model, as the user gave it.
        vocab_size: largest token id + 1, added tokens included.
    """

    def __init__(self, tokenizer: Tokenizer | None, chat_template: ChatTemplate | None, name: str) -> None:
        """Use a model's parts. Raises ModelError when the model folder has no tokenizer."""
        if tokenizer is None or chat_template is None:
            raise ModelError(f"{name} has no tokenizer.json, so prompts and outputs are token ids")
        self._tokenizer, self._chat_template = tokenizer, chat_template
        self.name_or_path = name
        self.vocab_size = tokenizer.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(
        self, text: str | Sequence[str], *, add_special_tokens: bool = True
    ) -> dict[str, list[int] | list[list[int]]]:  # fmt: skip
        """Return {"input_ids", "attention_mask"} of a text, or of several without padding."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens=add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        many = [self.encode(each, add_special_tokens=add_special_tokens) for each in text]
        return {"input_ids": many, "attention_mask": [[1] * len(ids) for ids in many]}

    # -- text and ids ----------------------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text. Raises InvalidRequest for text that UTF-8 cannot encode."""
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids, or of one; an id without a token has no text."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        """Return the text of each list of token ids."""
        return [self.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences]

    def tokenize(self, text: str) -> list[str]:
        """Return a text as the vocabulary's spellings of its tokens, without added special tokens."""
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens=False))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's spellings; "" for an id without a token."""
        return [self._tokenizer.token_text(token_id) or "" for token_id in ids]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int] | None:
        """Return the id of a spelling, or a list of ids; the unknown token's id where there is none."""
        if isinstance(tokens, str):
            return self._vocabulary.get(tokens, self._unknown_id)
        ids = [self._vocabulary.get(token, self._unknown_id) for token in tokens]
        return [token_id for token_id in ids if token_id is not None]

    def get_vocab(self) -> dict[str, int]:
        """Return spelling -> id of the whole vocabulary."""
        return dict(self._vocabulary)

    # -- chat ------------------------------------------------------------------------------------------------------

    @property
    def chat_template(self) -> str:
        """The template's source; "" when the model has none."""
        return self._chat_template.text

    def apply_chat_template(
        self, conversation: Messages | Sequence[Messages], tools: Sequence[Mapping[str, Any]] | None = None, *,
        documents: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = False,
        continue_final_message: bool = False, tokenize: bool = True, **variables: Any,
    ) -> Any:  # fmt: skip
        """Render one conversation or several.

        Args:
            conversation: messages with `role` and `content`, or a list of conversations.
            tools: tools that the model may call.
            documents: documents for templates that read them.
            add_generation_prompt: end with the beginning of the assistant's message.
            continue_final_message: end with the last message's text.
            tokenize: return token ids instead of text. Special tokens that a message spells are then ordinary text.
            variables: further variables of the template, such as enable_thinking.

        Returns:
            A string, or token ids with `tokenize`; a list of these for several conversations.

        Raises InvalidRequest for malformed messages, a model without a template, or options that are not supported.
        """
        for name in ("return_tensors", "return_dict", "chat_template"):
            if variables.pop(name, None):
                raise InvalidRequest(f"apply_chat_template does not support {name}", param=name)
        many: list[Any] = list(conversation)
        is_batch = bool(many) and isinstance(many[0], list | tuple)
        conversations: list[Any] = many if is_batch else [conversation]
        options = RenderOptions(
            variables=variables, documents=documents, add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )  # fmt: skip
        prompts = [self._chat_template.render(messages, tools=tools, options=options) for messages in conversations]
        rendered = [self._result(prompt, tokenize) for prompt in prompts]
        return rendered if is_batch else rendered[0]

    def _result(self, prompt: ChatPrompt, tokenize: bool) -> str | list[int]:
        return self._tokenizer.encode_chat(prompt) if tokenize else prompt.text

    # -- special tokens --------------------------------------------------------------------------------------------

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text, None without one."""
        return self._tokenizer.named_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text, None without one."""
        return self._tokenizer.named_tokens.get("eos_token")

    @property
    def pad_token(self) -> str | None:
        """The padding token, None without one."""
        return self._tokenizer.named_tokens.get("pad_token")

    @property
    def bos_token_id(self) -> int | None:
        """Id of bos_token."""
        return self._special_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of eos_token. A model may end its outputs with further tokens, see `LLM.defaults`."""
        return self._special_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """Id of pad_token."""
        return self._special_id("pad_token")

    @property
    def all_special_tokens(self) -> list[str]:
        """The spellings of the special tokens."""
        return list(self._tokenizer.special_tokens)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens."""
        return list(self._tokenizer.special_tokens.values())

    def _special_id(self, name: str) -> int | None:
        return self._tokenizer.special_tokens.get(self._tokenizer.named_tokens.get(name, ""))

    @cached_property
    def _unknown_id(self) -> int | None:
        return self._special_id("unk_token")

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        spelled = ((self._tokenizer.token_text(token_id), token_id) for token_id in range(self.vocab_size))
        return {text: token_id for text, token_id in spelled if text is not None}
