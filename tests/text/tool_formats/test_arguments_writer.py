"""ArgumentsWriter: arguments that are added one after another are written as one JSON object."""

from chairlift.text.tool_formats.arguments_writer import ArgumentsWriter
from chairlift.text.tool_formats.scanner import Scan, Scanner, ScanningParser
from support_tool_formats import Merged, merged, push_all


def test_arguments_are_written_as_one_object() -> None:
    def program(scanner: Scanner) -> Scan[None]:
        for arguments in ({}, {"a": "1"}, {"a": "[]", 'b"': '"é"'}):
            scanner.start_call("f")
            writer = ArgumentsWriter(scanner)
            for key, value in arguments.items():
                writer.add(key, value)
            writer.end()
        yield

    result = merged(push_all(ScanningParser(program)))
    assert result == Merged("", (("f", "{}"), ("f", '{"a": 1}'), ("f", '{"a": [], "b\\"": "é"}')))
