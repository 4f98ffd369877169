"""Distributed tracing: spans of a request across router and replicas, exported over OTLP. Off without an endpoint."""
