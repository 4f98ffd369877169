"""probe_template: finds out what a chat template writes, by rendering messages with markers and looking for them.

A template may drop what it does not know, or reject it with an error of its own; its text does not say which.
"""

from collections.abc import Callable, Sequence
from typing import Any

from chairlift.core.chat_template_names_and_limits import ROLES
from chairlift.core.errors import ChairliftError
from chairlift.text.call_text_place import TextPlace, with_text_at
from chairlift.text.chat_messages import ChatMessage, ToolCall, reasoning_parts
from chairlift.text.template_abilities import TemplateAbilities

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""Renders messages, and tools if there are any, to a prompt. Raises ChairliftError where the template rejects them."""

TOOL_NAME = "zqtool"
BARE_TOOL: dict[str, Any] = {"type": "function", "function": {"name": TOOL_NAME}}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME, "description": "zqdescription",
        "parameters": {"type": "object", "properties": {"zqparameter": {"type": "string"}}, "required": []},
    },
}  # fmt: skip
OTHER_ROLES = tuple(role for role in ROLES if role not in ("system", "developer", "user", "assistant", "tool"))
UNKNOWN_ROLE = "zqrole"
CALL_IDS = ("zqcallid1", "zqcallid2")
"""Of nine characters, which some templates demand."""


def probe_template(render: Render, *, with_tools: bool) -> TemplateAbilities:
    """Return what a template writes of conversations in which the model may call tools, or in which it may not."""
    probe = _Probe(render, [TOOL] if with_tools else None)
    writes_objects = probe.writes_calls()
    writes_text = probe.writes_calls(is_text=True)
    probe.has_text_arguments = writes_text and not writes_objects
    writes_bare_tools = with_tools and probe.writes_tool(BARE_TOOL)
    first_roles = [role for role in ("system", "developer") if probe.writes_instructions(role)]
    places = {
        f"{state}_text{suffix}": probe.text_place(is_closed=state == "closed", reasoning=reasoning)
        for state in ("open", "closed") for suffix, reasoning in (("", ""), ("_with_reasoning", "zqthought"))
    }  # fmt: skip
    return TemplateAbilities(
        tools=writes_bare_tools or (with_tools and probe.writes_tool(TOOL)),
        bare_tools=writes_bare_tools,
        system="system" in first_roles,
        developer="developer" in first_roles,
        instructions_before_results=probe.writes_instructions_before_results(next(iter(first_roles), "system")),
        lone_instructions=probe.writes([_system("zqs")], "zqs"),
        later_system=probe.writes_later_instructions("system"),
        later_developer=probe.writes_later_instructions("developer"),
        repeated_users=probe.writes([_user("zqu"), _user("zqv")], "zqu", "zqv")
        and probe.writes([_user("zqu"), _answer("zqa"), _user("zqv"), _user("zqw")], "zqu", "zqa", "zqv", "zqw"),
        repeated_answers=probe.writes([_user("zqu"), _answer("zqa"), _answer("zqb"), _user("zqv")],
                                      "zqu", "zqa", "zqb", "zqv"),
        first_answer=probe.writes_first_answer(),
        lone_answers=probe.writes_lone_answers(),
        empty_answers=probe.writes([_user("zqu"), _answer(""), _user("zqv")], "zqu", "zqv"),
        calls=writes_objects or writes_text,
        results=writes_objects or writes_text or probe.writes_results(),
        reasoning_parts=probe.writes_reasoning_parts(),
        object_arguments=writes_objects,
        text_arguments=writes_text,
        several_calls=probe.writes_several_calls(),
        late_results=probe.writes_late_results(),
        users_after_calls=probe.writes([*probe.called(1)[:2], _user("zqv")], "zqu", "zqargument1", "zqv"),
        users_after_results=probe.writes([*probe.called(1), _user("zqv")], "zqu", "zqargument1", "zqresult1", "zqv")
        or (not (writes_objects or writes_text) and probe.writes_results(_user("zqv"))),
        other_roles=tuple(
            role for role in OTHER_ROLES
            if probe.writes([_user("zqu"), ChatMessage(role=role, content="zqs"), _user("zqv")], "zqu", "zqs", "zqv")
        ),
        **places,
    )  # fmt: skip


class _Probe:
    """Renders small conversations with one template.

    Attributes:
        has_text_arguments: whether the arguments of calls are text.
    """

    def __init__(self, render: Render, tools: list[dict[str, Any]] | None) -> None:
        self._render, self._tools = render, tools
        self.has_text_arguments = False

    def writes(self, messages: Sequence[ChatMessage], *markers: str, anywhere: Sequence[str] = ()) -> bool:
        """Return whether the prompt of messages has markers in this order, and those that may stand anywhere."""
        prompt = self._prompt(messages, self._tools)
        at = 0
        for marker in markers:
            if (at := prompt.find(marker, at)) < 0:
                return False
        return bool(prompt) and all(marker in prompt for marker in anywhere)

    def writes_tool(self, tool: dict[str, Any]) -> bool:
        """Return whether the prompt names a tool, with instructions or without them."""
        return any(TOOL_NAME in self._prompt([*first, _user("zqu")], [tool]) for first in ([], [_system("zqs")]))

    def writes_instructions(self, role: str) -> bool:
        """Return whether a first message of a role is in the prompt, also later in the conversation."""
        first = ChatMessage(role=role, content="zqs")
        return (
            self.writes([first, _user("zqu")], anywhere=["zqs", "zqu"])
            and self.writes([first, _user("zqu"), _answer("zqa"), _user("zqv")], anywhere=["zqs", "zqu", "zqa", "zqv"])
            and not self._writes_any_role(role)
        )

    def _writes_any_role(self, role: str) -> bool:
        """Return whether a message of a role is written like one of a role that no model knows.

        A template that writes the name of every role knows the usual ones only: the role system, and not developer.
        """
        if role == "system":
            return False
        prompts = [self._prompt([ChatMessage(role=each, content="zqs"), _user("zqu")], self._tools)
                   for each in (role, UNKNOWN_ROLE)]  # fmt: skip
        return prompts[0] == prompts[1].replace(UNKNOWN_ROLE, role)

    def writes_instructions_before_results(self, role: str) -> bool:
        """Return whether first instructions are in the prompt where the last message is a result or an answer."""
        first = ChatMessage(role=role, content="zqs")
        ends = [self.called(1)] if self.writes(self.called(1), "zqresult1") else []
        return all(self.writes([first, *end], anywhere=["zqs"]) for end in (*ends, [_user("zqu"), _answer("zqa")]))

    def writes_first_answer(self) -> bool:
        """Return whether an answer before the first message of the user is in the prompt, also one with a call."""
        calls = self.called(1)[1:]
        has_calls = self.writes(self.called(1), "zqargument1", "zqresult1")
        return self.writes([_answer("zqa"), _user("zqu")], "zqa", "zqu") and (
            not has_calls or self.writes([*calls, _user("zqu")], "zqargument1", "zqresult1", "zqu")
        )

    def writes_lone_answers(self) -> bool:
        """Return whether answers are in the prompt of a conversation without the user, also one with a call."""
        has_calls = self.writes(self.called(1), "zqargument1", "zqresult1")
        return self.writes([_answer("zqa")], "zqa") and (
            not has_calls or self.writes(self.called(1)[1:], "zqargument1", "zqresult1")
        )

    def writes_later_instructions(self, role: str) -> bool:
        """Return whether messages of a role behind others are in the prompt, at their places."""
        later = ChatMessage(role=role, content="zqs")
        return (
            not self._writes_any_role(role)
            and self.writes([_user("zqu"), later], "zqu", "zqs")
            and self.writes([_user("zqu"), later, _answer("zqa"), _user("zqv")], "zqu", "zqs", "zqa", "zqv")
            and self.writes([_user("zqu"), _answer("zqa"), later, _user("zqv")], "zqu", "zqa", "zqs", "zqv")
            and self.writes([_system("zqr"), _user("zqu"), _answer("zqa"), later], "zqu", "zqa", "zqs")
        )

    def writes_calls(self, *, is_text: bool = False) -> bool:
        """Return whether two answers with a call each and their results are in the prompt, before an answer, too.

        Arguments that are text must be in it as they are.
        """
        self.has_text_arguments = is_text
        markers = ["zqu", "zqargument1", "zqresult1", "zqargument2", "zqresult2"]
        if is_text:
            markers[1::2] = [_text_arguments(1), _text_arguments(2)]
        rounds = self.called(1, 2)
        return self.writes(rounds, *markers) and self.writes(
            [*rounds, _answer("zqa"), _user("zqv")], *markers, "zqa", "zqv"
        )

    def writes_results(self, *behind: ChatMessage) -> bool:
        """Return whether a result behind an answer without calls is in the prompt, and the messages behind it.

        A template that writes the name of every role knows results if it writes tools.
        """
        markers = ("zqu", "zqa", "zqresult1", *(each.content for each in behind))
        knows_role = not self._writes_any_role("tool") or _Probe(self._render, [TOOL]).writes_tool(TOOL)
        return knows_role and self.writes([_user("zqu"), _answer("zqa"), _result(1), *behind], *markers)

    def writes_reasoning_parts(self) -> bool:
        """Return whether reasoning is in the prompt if it is a part of an answer's content, and only then.

        The answer has a call if the template writes calls: some write the reasoning of no other answer.
        """
        has_calls = self.writes(self.called(1), "zqargument1", "zqresult1")
        calls = (self._call(1),) if has_calls else ()
        answer = ChatMessage(role="assistant", content="zqa", reasoning="zqthought", calls=calls)
        rest = [_result(1)] if calls else [_user("zqv")]
        texts = [_user("zqu").as_json(), answer.as_json(), *(each.as_json() for each in rest)]
        parts = [texts[0], {**texts[1], "content": reasoning_parts(answer)}, *texts[2:]]
        plain, written = self._json_prompt(texts, self._tools), self._json_prompt(parts, self._tools)
        is_order = 0 <= written.find("zqthought") < written.find("zqa")
        return bool(plain) and "zqthought" not in plain and is_order and written.count("type") == plain.count("type")

    def writes_several_calls(self) -> bool:
        """Return whether two calls of one answer and their results are in the prompt."""
        answer = ChatMessage(role="assistant", calls=(self._call(1), self._call(2)))
        markers = ("zqu", "zqargument1", "zqargument2", "zqresult1", "zqresult2")
        messages = [_user("zqu"), answer, _result(1), _result(2)]
        return self.writes(messages, *markers) and self.writes([*messages, _answer("zqa")], *markers, "zqa")

    def writes_late_results(self) -> bool:
        """Return whether results that do not follow their calls are in the prompt, at their places."""
        user, answer, result = self.called(1)
        markers = ("zqu", "zqargument1", "zqv", "zqresult1")
        late = [user, answer, _user("zqv"), result]
        return self.writes(late, *markers) and self.writes(
            [*late, _answer("zqa"), _user("zqw")], *markers, "zqa", "zqw"
        )

    def text_place(self, *, is_closed: bool, reasoning: str) -> TextPlace:
        """Return the first place at which the text of an answer with calls is in the prompt; BEFORE if none is.

        A text that changes what stands behind the last result ends the turn in which the model has to go on (Gemma 4).
        """
        ending = [_answer("zqa"), _user("zqv")] if is_closed else []
        markers = ["zqu", "zqargument1", "zqresult1", "zqargument2", "zqresult2", *(each.content for each in ending)]
        bare = self._prompt(self._with_texts(TextPlace.BESIDE, reasoning, has_texts=False), self._tools)
        end = bare.rpartition("zqresult2")[2]
        for place in TextPlace:
            messages = self._with_texts(place, reasoning)
            if self.writes([*messages, *ending], *markers, anywhere=["zqtext1", "zqtext2"]) and (
                is_closed or not bare or self._prompt(messages, self._tools).endswith(f"zqresult2{end}")
            ):
                return place
        return TextPlace.BEFORE

    def _with_texts(self, place: TextPlace, reasoning: str, *, has_texts: bool = True) -> list[ChatMessage]:
        """Return two answers with a call, a result and, at this place, a text each."""
        messages = [_user("zqu")]
        for number in (1, 2):
            text = f"zqtext{number}" if has_texts else ""
            called = ChatMessage(role="assistant", content=text, reasoning=reasoning, calls=(self._call(number),))
            messages = [*with_text_at(place, messages, called), _result(number)]
        return messages

    def called(self, *numbers: int) -> list[ChatMessage]:
        """Return a message of the user, and an answer with a call and its result for each number."""
        rounds = [(ChatMessage(role="assistant", calls=(self._call(each),)), _result(each)) for each in numbers]
        return [_user("zqu"), *(message for each in rounds for message in each)]

    def _call(self, number: int) -> ToolCall:
        arguments = _text_arguments(number) if self.has_text_arguments else {"zqparameter": f"zqargument{number}"}
        return ToolCall(CALL_IDS[number - 1], TOOL_NAME, arguments, {"type": "function"})

    def _prompt(self, messages: Sequence[ChatMessage], tools: list[dict[str, Any]] | None) -> str:
        """Return a prompt, "" where the template rejects the messages."""
        return self._json_prompt([message.as_json() for message in messages], tools)

    def _json_prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        try:
            return self._render(messages, tools)
        except ChairliftError:
            return ""


def _text_arguments(number: int) -> str:
    """Return arguments that max_tokens has cut off."""
    return f'{{"zqparameter": "zqargument{number}'


def _system(content: str) -> ChatMessage:
    return ChatMessage(role="system", content=content)


def _user(content: str) -> ChatMessage:
    return ChatMessage(role="user", content=content)


def _answer(content: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=content)


def _result(number: int) -> ChatMessage:
    return ChatMessage(role="tool", content=f"zqresult{number}", call_id=CALL_IDS[number - 1], name=TOOL_NAME)
