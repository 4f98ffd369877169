"""RouteEntry: one route of an HTTP service."""

from chairlift.web.body import App

RouteEntry = tuple[str, str, App]
"""Method, path and handler of a route."""
