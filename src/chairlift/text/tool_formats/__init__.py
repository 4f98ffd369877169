"""The formats in which models write tool calls, one parser for each, and their detection."""
