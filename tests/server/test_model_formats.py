"""ModelFormats: formats of calls by setting, template and reasoning."""

import dataclasses

import pytest

from chairlift.server.replica import Replica
from chairlift.text.chat_template import ChatTemplate
from support_replica import with_replica
from support_services import AsciiTokenizer


def test_the_setting_decides_the_format_of_calls_before_the_template() -> None:
    names = []
    for options in ({}, {"tool_call_parser": "llama3_json"}, {"tool_call_parser": "glm"}):
        with_replica(lambda replica: names.append(replica.formats.tool_format.name), **options)
    assert names == ["generic", "llama3", "glm"]


@pytest.mark.parametrize(("parser", "is_enforced"), [("auto", True), ("qwen3", True), ("deepseek_r1", False)])
def test_calls_that_a_model_may_make_are_enforced_unless_it_reasons_without_a_start(
    parser: str, is_enforced: bool
) -> None:
    def check(replica: Replica) -> None:
        for source in ("</think>{{ tools }}<tool_call>", "</think>"):
            chat = ChatTemplate({"default": source}, AsciiTokenizer(), reasoning_parser=parser)
            other = Replica(replica.config)
            other.attach_service(dataclasses.replace(replica.service, chat_template=chat), lambda: None, 2048)
            found = other.formats.tool_format
            assert found.follows_reasoning
            assert (found.is_enforced if found.is_generic else bool(found.auto_notations)) == is_enforced

    with_replica(check)


def test_a_template_that_has_the_model_call_a_tool_of_its_own_has_no_grammar_of_optional_calls() -> None:
    """Where Command-R needs none of the request's tools, it calls directly-answer."""

    def check(replica: Replica) -> None:
        source = "{{ tools }} Use the `directly-answer` tool if ... Action: [{tool_name: ...}]"
        for text, is_enforced in ((source, False), (source.replace("directly", "other"), True)):
            for name in (None, "command-r"):
                other = Replica(dataclasses.replace(replica.config, tool_call_parser=name))
                chat = ChatTemplate({"default": text}, AsciiTokenizer())
                other.attach_service(dataclasses.replace(replica.service, chat_template=chat), lambda: None, 2048)
                assert (
                    other.formats.tool_format.name == "command-r"
                    and bool(other.formats.tool_format.auto_notations) == is_enforced
                )

    with_replica(check)
