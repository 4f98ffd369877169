"""text: tokenizers, chat templates, incremental detokenization, stop strings, reasoning and tool call parsers."""
