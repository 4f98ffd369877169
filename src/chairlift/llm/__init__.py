"""llm: the text service, LLM and AsyncLLM on top of an engine."""
