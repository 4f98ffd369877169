"""model_token_limits: the members of a model in /v1/models that say how many tokens fit."""


def model_token_limits(max_model_len: int) -> dict[str, int]:
    """Return the limits of a model whose requests have at most `max_model_len` tokens, prompt and output together.

    `max_model_len` is read by clients of vLLM, the others by those of Anthropic's API. A prompt and an output have at
    least one token each.
    """
    return {"max_model_len": max_model_len, "max_input_tokens": max_model_len - 1, "max_tokens": max_model_len - 1}
