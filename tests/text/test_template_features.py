"""reads_tools, takes_system_messages: what a template does with tools and system messages, by its text."""

import pytest

from chairlift.text.template_features import reads_tools, takes_system_messages
from support_shares import for_each

LOOP = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@for_each(
    ("template", "expected"),
    [
        ("{% if tools %}", True), ("{{ tools | tojson }}", True), ("{%- if not tools is defined %}", True),
        ("{{ message.tools }}", False), ("{{ message['tools'] }}", False), ("tools", False), ("{{ tools_in }}", False),
        ("{{ 'tools' }}", False), ("{{ builtin_tools }}", False),
    ],
)  # fmt: skip
def test_whether_a_template_takes_tools(template: str, expected: bool) -> None:
    assert reads_tools(template) is expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% if message.role == 'system' %}", True), (LOOP, False),
        ("{% if role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}", False),
        ("{{ raise_exception('Roles must alternate') }}{% if role == 'system' %}", True),
    ],
)  # fmt: skip
def test_whether_a_template_takes_system_messages(template: str, expected: bool) -> None:
    assert takes_system_messages(template) is expected
