"""client_tool: tools of Anthropic's API whose schema is known by their type, and which the client runs, as functions.

Source: Anthropic's reference of the bash, the text editor and the memory tool. The computer tool has none here: its
results are images.
"""

from collections.abc import Sequence
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
_COMMANDS = ("view", "create", "str_replace", "insert")
_FILE_MEMBERS: Json = {
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
}  # fmt: skip


def _files(description: str, commands: Sequence[str], required: Sequence[str], **members: Json) -> Json:
    """Return a tool whose `command` is one of `commands` on files."""
    return {"description": description, "parameters": {
        "type": "object", "properties": {"command": {"enum": [*commands]}, **_FILE_MEMBERS, **members},
        "required": [*required],
    }}  # fmt: skip


_EDITS = "Views, creates and edits text files."
_TEXT_EDITOR = _files(_EDITS, _COMMANDS, ("command", "path"))
_EARLIER_EDITOR = _files(_EDITS, (*_COMMANDS, "undo_edit"), ("command", "path"))
_MEMORY = _files(
    "Keeps notes between conversations, as files below /memories. View /memories first, and note what later "
    "conversations need.",
    (*_COMMANDS, "delete", "rename"), ("command",),
    old_path={**_TEXT, "description": "For rename: the path of the file or folder."},
    new_path={**_TEXT, "description": "For rename: its new path."},
)  # fmt: skip
_BY_TYPE = {"text_editor_20241022": _EARLIER_EDITOR, "text_editor_20250124": _EARLIER_EDITOR}
"""Type of a tool -> the function."""

_BY_BEGINNING = {"bash_": _BASH, "text_editor_": _TEXT_EDITOR, "memory_": _MEMORY}
"""What the type of a tool begins with, before its date -> the function."""


def client_tool(kind: str, name: Any) -> Json | None:
    """Return the function that stands for a tool of this type; None for one that Anthropic's servers run."""
    beginning = kind.rstrip("0123456789")
    function = _BY_TYPE.get(kind) or (_BY_BEGINNING.get(beginning) if beginning != kind else None)
    return None if function is None else {"name": name, **function}
