"""Authentication: API keys, tokens, and the checks of a request before its route."""
