"""Names and bounds of what a chat request may pass to the chat template."""

MAX_VARIABLES = 64
MAX_VARIABLES_CHARS = 65_536
"""Most characters of all variables of a request together, as JSON."""

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""OpenAI's values of reasoning_effort, in order."""

REQUEST_FIELDS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Variables and options of rendering that are fields of a request themselves."""

RESERVED_VARIABLES = frozenset({
    "chat_template", "conversation", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "self", "bos_token", "eos_token", "unk_token", "sep_token",
    "pad_token", "cls_token", "mask_token", "additional_special_tokens",
})  # fmt: skip
"""Arguments of transformers' apply_chat_template that are not variables, and names of the tokenizer's tokens."""

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Keys of an earlier answer's reasoning, the first one wins; chat templates read one of the first two."""

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of content parts with a text; the last two are those of the Responses API."""

ROLES = (
    "assistant", "context", "developer", "environment", "function", "ipython", "model", "system", "tool", "user",
)  # fmt: skip
"""Roles of messages; each chat template knows some of them."""
