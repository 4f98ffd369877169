"""One replica of the router, and the place of a request on it."""
