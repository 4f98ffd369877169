"""Names of vLLM: options of the constructors, and the tokenizer that `get_tokenizer()` returns."""
