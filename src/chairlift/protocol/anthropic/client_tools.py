"""client_tool: tools of Anthropic's API whose schema is known by their type, and which the client runs, as functions.

Source: Anthropic's reference of the bash tool and of the text editor tool.
"""

from typing import Any

from chairlift.protocol.translation.base import Json

_TEXT: Json = {"type": "string"}
_BASH: Json = {
    "description": "Runs a command in a bash session that stays open between calls.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": {**_TEXT, "description": "The command to run."},
            "restart": {"type": "boolean", "description": "True to start the session again, without a command."},
        },
    },
}  # fmt: skip
_EDITOR_COMMANDS = ("view", "create", "str_replace", "insert")
_TEXT_EDITOR: Json = {
    "description": "Views, creates and edits text files.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"enum": [*_EDITOR_COMMANDS]},
            "path": {**_TEXT, "description": "Absolute path of a file or folder."},
            "view_range": {
                "type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
                "description": "For view: the first and the last line, counted from 1; -1 is the end of the file.",
            },
            "file_text": {**_TEXT, "description": "For create: the whole text of the file."},
            "old_str": {**_TEXT, "description": "For str_replace: the text to replace, which stands there once."},
            "new_str": {**_TEXT, "description": "For str_replace: the text in its place."},
            "insert_line": {"type": "integer", "description": "For insert: the line behind which the text goes."},
            "insert_text": {**_TEXT, "description": "For insert: the text."},
        },
        "required": ["command", "path"],
    },
}  # fmt: skip
_BY_TYPE = {"bash_": _BASH, "text_editor_": _TEXT_EDITOR}
"""What the type of a tool begins with, before its date -> the function."""


def client_tool(kind: str, name: Any) -> Json | None:
    """Return the function that stands for a tool of this type; None for one that Anthropic's servers run."""
    rest = {prefix: kind.removeprefix(prefix) for prefix in _BY_TYPE if kind.startswith(prefix)}
    return next(({"name": name, **_BY_TYPE[prefix]} for prefix, date in rest.items() if date.isdigit()), None)
