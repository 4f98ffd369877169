"""OpenAI's Files and Batch APIs: uploaded files, and batches of requests that run in the background."""
