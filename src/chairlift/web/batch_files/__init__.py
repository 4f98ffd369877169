"""OpenAI's batch files: a file of requests becomes a file of responses, also across an interruption."""
