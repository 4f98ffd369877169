"""The text service: LLM and AsyncLLM over an engine."""
