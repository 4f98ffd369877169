"""Limits of numbers that several parts of the package check, each with its unit and its reason."""

MAX_INT32 = 2**31 - 1
"""Largest token id and largest number of tokens, blocks or sequences: plans, block tables and kernels hold int32."""

MAX_PRIORITY = MAX_INT32
"""Largest priority of a request; the smallest is its negative. A smaller number is scheduled first."""

MIN_HTTP_PRIORITY = 0
"""Smallest priority over HTTP: that of a request which names none, so that no client gets ahead of them."""

MAX_TIMEOUT_SECONDS = 10 * 365 * 86_400.0
"""Largest timeout of a request in seconds; a longer one is a mistake. None means no timeout."""

MAX_HTTP_TIMEOUT_SECONDS = 86_400
"""Largest timeout over HTTP in seconds, of the field as of the header: one connection has to last that long."""
