"""Structured cost: measures what token masks cost, by a batch where every other request has a JSON Schema."""
