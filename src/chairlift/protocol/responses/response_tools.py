"""ResponseTools: the tools of the Responses API as those of chat completions, and the names of their calls.

function, custom         ──> as they are
namespace                ──> its functions; one whose name is that of another tool, too, has the namespace before it
web_search and others    ──> left out, because this server runs no tools itself; their types are named as ignored
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import format_short
from chairlift.protocol.left_out_types import LeftOutTypes
from chairlift.protocol.request_schemas import MAX_TOOLS
from chairlift.protocol.translation.base import Json

FUNCTION, CUSTOM, NAMESPACE, ALLOWED_TOOLS = "function", "custom", "namespace", "allowed_tools"
SEPARATOR = "__"
"""Between a namespace and the name of one of its functions."""


class OwnName(NamedTuple):
    """What a response calls a tool: its name, and its namespace if it has one."""

    name: str
    namespace: str = ""


class _DescribedTool(NamedTuple):
    """A function or a custom tool, with its namespace and the place in the request of what describes it."""

    kind: str
    tool: Json
    namespace: str
    place: str


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """The tools of one request.

    Attributes:
        chat: those of chat completions.
        places: for each of them the place in the request, such as `tools[1].tools[0]`.
        left_out: names of the types of those that are left out.
        own_names: name in chat completions -> what the response calls the tool, where that differs.
    """

    chat: list[Json] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    left_out: tuple[str, ...] = ()
    own_names: dict[str, OwnName] = field(default_factory=dict)

    @classmethod
    def read(cls, tools: Any) -> "ResponseTools":
        """Read the field `tools`. Raises InvalidRequest that names the place of what is wrong."""
        if tools is None:
            return cls()
        if not isinstance(tools, list):
            raise invalid_param("tools", f"must be a list, got {format_short(tools)}")
        left_out = LeftOutTypes()
        entries = _entries(tools, "tools", "", left_out)
        if len(entries) > MAX_TOOLS:
            raise invalid_param("tools", f"has {len(entries)} functions, the limit is {MAX_TOOLS}")
        counts = Counter(entry.tool.get("name") for entry in entries if isinstance(entry.tool.get("name"), str))
        chat, own_names = list[Json](), dict[str, OwnName]()
        for kind, tool, namespace, _ in entries:
            called = {name: value for name, value in tool.items() if name != "type"}
            if namespace and isinstance(name := called.get("name"), str):
                called["name"] = _joined(namespace, name) if counts[name] > 1 else name
                own_names[called["name"]] = OwnName(name, namespace)
            chat.append({"type": kind, kind: called})
        return cls(chat, [entry.place for entry in entries], left_out.names, own_names)

    def own_name(self, chat_name: str) -> OwnName:
        """Return what the response calls a tool."""
        return self.own_names.get(chat_name, OwnName(chat_name))

    def chat_name(self, name: str, namespace: Any = None) -> str:
        """Return the name in chat completions of a tool that a request names."""
        own = OwnName(name, namespace if isinstance(namespace, str) else "")
        return next((chat_name for chat_name, each in self.own_names.items() if each == own), name)

    def paths(self) -> dict[str, str]:
        """Return for the beginning of each path to a tool of chat completions that of the request."""
        return {
            f"tools[{index}]{member}": place
            for index, place in enumerate(self.places) for member in (f".{FUNCTION}", f".{CUSTOM}", "")
        }  # fmt: skip

    def chat_choice(self, choice: Any) -> Any:
        """Return `tool_choice` as chat completions have it, which check it. Raises InvalidRequest."""
        if not isinstance(choice, dict):
            return choice
        if choice.get("type") != ALLOWED_TOOLS:
            return self._named(choice, "tool_choice")
        tools = choice.get("tools")
        if not isinstance(tools, list):
            raise invalid_param("tool_choice.tools", f"must be a list, got {format_short(tools)}")
        named = [self._named(tool, f"tool_choice.tools[{index}]") for index, tool in enumerate(tools)]
        return {"type": ALLOWED_TOOLS, ALLOWED_TOOLS: {"mode": choice.get("mode"), "tools": named}}

    def _named(self, tool: Any, at: str) -> Json:
        if not isinstance(tool, dict):
            raise invalid_param(at, f"must be an object, got {format_short(tool)}")
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise invalid_param(f"{at}.type", "must be function or custom, with a name")
        if kind not in (FUNCTION, CUSTOM):
            return {"type": kind}  # one that was left out
        if not isinstance(tool.get("name"), str):
            raise invalid_param(f"{at}.name", f"must be a string, got {format_short(tool.get('name'))}")
        return {"type": kind, kind: {"name": self.chat_name(tool["name"], tool.get(NAMESPACE))}}


def _entries(tools: list[Any], at: str, namespace: str, left_out: LeftOutTypes) -> list[_DescribedTool]:
    """Return the functions and custom tools of a list; types of others are added to `left_out`."""
    entries: list[_DescribedTool] = []
    for index, tool in enumerate(tools):
        place = f"{at}[{index}]"
        if not isinstance(tool, dict):
            raise invalid_param(place, f"must be an object, got {format_short(tool)}")
        kind = FUNCTION if tool.get("type") is None else tool["type"]
        if not isinstance(kind, str) or not kind:
            raise invalid_param(f"{place}.type", f"must be a string, got {format_short(kind)}")
        if kind in (FUNCTION, CUSTOM):
            called = tool.get(kind)  # where chat completions have what a tool describes
            if isinstance(called, dict):
                entries.append(_DescribedTool(kind, called, namespace, f"{place}.{kind}"))
            else:
                entries.append(_DescribedTool(kind, tool, namespace, place))
        elif kind == NAMESPACE and not namespace:
            entries += _of_namespace(tool, place, left_out)
        else:
            left_out.add("tools", kind)
    return entries


def _of_namespace(tool: Json, at: str, left_out: LeftOutTypes) -> list[_DescribedTool]:
    """Return the tools of a namespace; its description is the beginning of the first one's."""
    name, inner = tool.get("name"), tool.get("tools")
    if not isinstance(name, str) or not name:
        raise invalid_param(f"{at}.name", f"must be a string that is not empty, got {format_short(name)}")
    if not isinstance(inner, list):
        raise invalid_param(f"{at}.tools", f"must be a list, got {format_short(inner)}")
    entries = _entries(inner, f"{at}.tools", name, left_out)
    if entries and isinstance(described := tool.get("description"), str) and described:
        first = entries[0]
        own = first.tool.get("description")
        both = f"{described}\n\n{own}" if isinstance(own, str) and own else described
        entries[0] = first._replace(tool={**first.tool, "description": both})
    return entries


def _joined(namespace: str, name: str) -> str:
    return namespace + ("" if namespace.endswith(SEPARATOR) else SEPARATOR) + name
