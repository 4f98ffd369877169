"""ResponseTools: the tools of the Responses API as those of chat completions, and the names of their calls.

function, custom         ──> as they are
namespace                ──> its functions; one whose name is that of another tool, too, has the namespace before it
tools of items           ──> those that a conversation adds (additional_tools, tool_search_output), each once
web_search and others    ──> left out, because this server runs no tools itself; their types are named as ignored
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import format_short
from chairlift.protocol.left_out_types import LeftOutTypes
from chairlift.protocol.plain_choice import CHOICES, REQUIRED, plain_choice
from chairlift.protocol.request_schemas import MAX_TOOL_NAME_CHARS, MAX_TOOLS
from chairlift.protocol.translation.base import Json

FUNCTION, CUSTOM, NAMESPACE, ALLOWED_TOOLS = "function", "custom", "namespace", "allowed_tools"
DESCRIBING = ("description", "parameters", "strict", "format")
"""Members of a tool that describe it, which clients may put beside its `function`, too."""

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

    @property
    def own_name(self) -> OwnName:
        """What the response calls the tool; without a name that is a string, which chat completions reject, none."""
        name = self.tool.get("name")
        return OwnName(name if isinstance(name, str) else "", self.namespace)


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
    def read(cls, tools: Any, of_items: Iterable[tuple[Any, str]] = ()) -> "ResponseTools":
        """Read the field `tools`, and the lists of tools that items have, with their places.

        Raises InvalidRequest that names the place of what is wrong.
        """
        left_out = LeftOutTypes()
        entries = _entries([] if tools is None else tools, "tools", "", left_out)
        _check_number(entries, "tools")
        known = {entry.own_name for entry in entries}
        for later, place in of_items:
            more = _entries([] if later is None else later, place, "", left_out)
            entries += [entry for entry in more if entry.own_name not in known]
            known |= {entry.own_name for entry in more}
            _check_number(entries, place)
        chat_names = _chat_names(entries)
        chat, own_names = list[Json](), dict[str, OwnName]()
        for entry, chat_name in zip(entries, chat_names, strict=True):
            called = {name: value for name, value in entry.tool.items() if name != "type"}
            if entry.namespace and chat_name is not None:
                called["name"] = chat_name
                own_names[chat_name] = entry.own_name
            chat.append({"type": entry.kind, entry.kind: called})
        return cls(chat, [entry.place for entry in entries], left_out.names, own_names)

    def own_name(self, chat_name: str) -> OwnName:
        """Return what the response calls a tool."""
        return self.own_names.get(chat_name, OwnName(chat_name))

    def chat_name(self, name: str, namespace: Any = None) -> str:
        """Return the name in chat completions of a tool that a request names."""
        own = OwnName(name, namespace if isinstance(namespace, str) else "")
        return next((chat_name for chat_name, each in self.own_names.items() if each == own), name)

    def chat_choice(self, choice: Any) -> Any:
        """Return `tool_choice` as chat completions have it, which check it; None for one that has no effect.

        It has none where it asks for tools that are left out. Raises InvalidRequest.
        """
        choice = plain_choice(choice)
        if isinstance(choice, str) and choice in CHOICES and not self.chat and self.left_out:
            return None if choice == REQUIRED else choice
        if not isinstance(choice, dict):
            return choice
        kind = choice.get("type")
        has_tools = bool(self.chat or self.left_out)
        if has_tools and isinstance(kind, str) and kind not in (FUNCTION, CUSTOM, ALLOWED_TOOLS):
            return None
        chosen = self._chosen(choice)
        if kind == ALLOWED_TOOLS and not self.chat and self.left_out:
            named = [tool for tool in chosen[ALLOWED_TOOLS]["tools"] if tool["type"] in (FUNCTION, CUSTOM)]
            return chosen if named else None  # a function that is named is not among the tools, which is an error
        return chosen

    def _chosen(self, choice: Json) -> Json:
        if choice.get("type") != ALLOWED_TOOLS:
            return self._named(choice, "tool_choice")
        nested = choice.get(ALLOWED_TOOLS)  # as chat completions have it
        allowed, at = (nested, f"tool_choice.{ALLOWED_TOOLS}") if isinstance(nested, dict) else (choice, "tool_choice")
        tools = allowed.get("tools")
        if not isinstance(tools, list):
            raise invalid_param(f"{at}.tools", f"must be a list, got {format_short(tools)}")
        named = [self._named(tool, f"{at}.tools[{index}]") for index, tool in enumerate(tools)]
        return {"type": ALLOWED_TOOLS, ALLOWED_TOOLS: {"mode": allowed.get("mode"), "tools": named}}

    def _named(self, tool: Any, at: str) -> Json:
        if not isinstance(tool, dict):
            raise invalid_param(at, f"must be an object, got {format_short(tool)}")
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise invalid_param(f"{at}.type", "must be function or custom, with a name")
        if kind not in (FUNCTION, CUSTOM):
            return {"type": kind}  # one that was left out
        named = tool[kind] if isinstance(tool.get(kind), dict) else tool
        if not isinstance(name := named.get("name"), str):
            raise invalid_param(f"{at}.name", f"must be a string, got {format_short(name)}")
        return {"type": kind, kind: {"name": self.chat_name(name, tool.get(NAMESPACE))}}


def _check_number(entries: list[_DescribedTool], at: str) -> None:
    if len(entries) > MAX_TOOLS:
        raise invalid_param(at, f"has {len(entries)} functions, the limit is {MAX_TOOLS}")


def _entries(tools: Any, at: str, namespace: str, left_out: LeftOutTypes) -> list[_DescribedTool]:
    """Return the functions and custom tools of a list; types of others are added to `left_out`."""
    if not isinstance(tools, list):
        raise invalid_param(at, f"must be a list, got {format_short(tools)}")
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
                outer = {name: tool[name] for name in DESCRIBING if tool.get(name) is not None}
                entries.append(_DescribedTool(kind, {**outer, **called}, namespace, f"{place}.{kind}"))
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
    entries = _entries(inner, f"{at}.tools", name, left_out)
    if not entries:
        left_out.add("tools", NAMESPACE)
    if entries and isinstance(described := tool.get("description"), str) and described:
        first = entries[0]
        own = first.tool.get("description")
        both = f"{described}\n\n{own}" if isinstance(own, str) and own else described
        entries[0] = first._replace(tool={**first.tool, "description": both})
    return entries


def _chat_names(entries: list[_DescribedTool]) -> list[str | None]:
    """Return the name in chat completions of each tool, for those of namespaces one that no other has.

    None for a name that is no string, which chat completions report.
    """
    names = [name if isinstance(name := entry.tool.get("name"), str) else None for entry in entries]
    counts = Counter(names)
    taken = {name for name, entry in zip(names, entries, strict=True) if not entry.namespace or counts[name] == 1}
    found: dict[OwnName, str] = {}
    chosen: list[str | None] = []
    for name, entry in zip(names, entries, strict=True):
        if name is None or (name in taken and (not entry.namespace or counts[name] == 1)):
            chosen.append(name)
            continue
        if entry.own_name not in found:  # a tool that comes twice has one name, which chat completions report
            found[entry.own_name] = _free_name(entry.namespace, name, taken)
            taken.add(found[entry.own_name])
        chosen.append(found[entry.own_name])
    return chosen


def _free_name(namespace: str, name: str, taken: Collection[str | None]) -> str:
    """Return a valid name for a function of a namespace that is not taken."""
    joined = namespace + ("" if namespace.endswith(SEPARATOR) else SEPARATOR) + name
    joined = re.sub(r"[^A-Za-z0-9_.:-]", "_", joined)
    numbered = (f"{joined[: MAX_TOOL_NAME_CHARS - 4]}_{number}" for number in range(2, 2 + MAX_TOOLS))
    candidates = chain([joined] if len(joined) <= MAX_TOOL_NAME_CHARS else [], numbered)
    return next(candidate for candidate in candidates if candidate not in taken)
