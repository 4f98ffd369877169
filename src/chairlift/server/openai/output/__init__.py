"""Outputs of a running request: tracked for telemetry, and sent as they come."""
