"""Cost of the router beside other proxies: chunks per second of one core, time to first token, requests, memory."""
