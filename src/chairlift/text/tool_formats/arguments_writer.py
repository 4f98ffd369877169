"""ArgumentsWriter: writes the arguments of a call as JSON for the client."""

from chairlift.text.tool_formats.json_values import json_string
from chairlift.text.tool_formats.scanner import Scanner


class ArgumentsWriter:
    """Writes the arguments of a started call one after the other, as one JSON object."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._separator = "{"

    def add(self, key: str, value: str) -> None:
        """Add an argument whose value is JSON text."""
        self._scanner.add_arguments(f"{self._separator}{json_string(key)}: {value}")
        self._separator = ", "

    def add_cut(self, key: str, value: str) -> None:
        """Add an argument at the end of the answer; its value is the beginning of JSON text."""
        if value:
            self.add(key, value)

    def start_string(self, key: str) -> None:
        """Start an argument that is a string."""
        self.add(key, '"')

    def add_string(self, text: str) -> None:
        """Add text to the string."""
        is_plain = text == " " or text.isalnum()  # for speed: such text is the same in JSON
        self._scanner.add_arguments(text if is_plain else json_string(text)[1:-1])

    def end_string(self) -> None:
        """End the string."""
        self._scanner.add_arguments('"')

    def end(self) -> None:
        """End the object and the call."""
        self._scanner.add_arguments("{}" if self._separator == "{" else "}")
        self._scanner.end_call()
