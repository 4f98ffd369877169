"""Names of the headers between a router and its replicas. Clients send only TIMEOUT_HEADER."""

from chairlift.core.numeric_limits import MAX_HTTP_TIMEOUT_SECONDS

ROUTER_HEADER = b"x-chairlift-router"
"""`1` in a request: a router sends it. Its response has LOAD_HEADER, and a drain may hand its stream over."""

PROGRESS_HEADER = b"x-chairlift-progress"
"""`1` in a request that is not streamed: the response is a stream of events `progress`, then one event `response`."""

LOAD_HEADER = b"x-chairlift-load"
"""In a response: the replica's LoadSummary."""

TIMEOUT_HEADER = b"x-request-timeout-ms"
"""In a request: milliseconds that it may take. Clients send it, too."""

MAX_TIMEOUT_MS = 1000 * MAX_HTTP_TIMEOUT_SECONDS
