"""Names of vLLM and transformers: options of the constructors and the tokenizer object."""
