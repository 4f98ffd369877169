"""TemplateAbilities: what a chat template writes of a conversation; template_input writes everything else otherwise."""

from dataclasses import asdict, dataclass
from typing import Any

from chairlift.text.call_text_place import TextPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateAbilities:
    """What a template writes, each found by rendering messages with markers: see probe_template.

    Attributes:
        tools: the tools that the model may call, by their names.
        bare_tools: tools without a description or parameters.
        system: a first message of the role system.
        developer: a first message of the role developer.
        instructions_before_results: first instructions also where the last message is a result or an answer.
        lone_instructions: instructions without a message of the user.
        later_system: messages of the role system behind others, at their places.
        later_developer: the same for the role developer.
        repeated_users: two messages of the user in a row.
        repeated_answers: two answers in a row.
        first_answer: an answer, also one with a call, before the first message of the user.
        lone_answers: answers, also one with a call, without any message of the user.
        empty_answers: an answer without text between two messages of the user.
        calls: calls and their results, one call in an answer.
        results: results of calls, also where it writes no calls.
        reasoning_parts: the reasoning of an answer from a part of its content, and not from a member of its own.
        several_calls: several calls in one answer.
        object_arguments: arguments of calls that are objects.
        text_arguments: arguments of calls that are text, as they are.
        late_results: a result behind a message of the user that follows its call.
        users_after_calls: a message of the user right behind a call that has no result.
        users_after_results: a message of the user right behind a result.
        other_roles: roles besides system, developer, user, assistant and tool.
        open_text: place of the text of an answer with a call while no answer without one follows.
        open_text_with_reasoning: the same where the answer has reasoning, too.
        closed_text: place of that text where an answer without a call follows later.
        closed_text_with_reasoning: the same where the answer has reasoning, too.
    """

    tools: bool = True
    bare_tools: bool = True
    system: bool = True
    developer: bool = True
    instructions_before_results: bool = True
    lone_instructions: bool = True
    later_system: bool = True
    later_developer: bool = True
    repeated_users: bool = True
    repeated_answers: bool = True
    first_answer: bool = True
    lone_answers: bool = True
    empty_answers: bool = True
    calls: bool = True
    results: bool = True
    reasoning_parts: bool = False
    several_calls: bool = True
    object_arguments: bool = True
    text_arguments: bool = True
    late_results: bool = True
    users_after_calls: bool = True
    users_after_results: bool = True
    other_roles: tuple[str, ...] = ()
    open_text: TextPlace = TextPlace.BESIDE
    open_text_with_reasoning: TextPlace = TextPlace.BESIDE
    closed_text: TextPlace = TextPlace.BESIDE
    closed_text_with_reasoning: TextPlace = TextPlace.BESIDE

    def as_json(self) -> dict[str, Any]:
        """Return the abilities by name."""
        return {name: str(value) if isinstance(value, TextPlace) else value for name, value in asdict(self).items()}

    def forms(self) -> dict[str, str]:
        """Return for each part of a conversation how it is written, for people."""
        written = {"system": self.system, "developer": self.developer}
        later = {"system": self.later_system, "developer": self.later_developer}
        first = ", ".join(role for role, is_written in written.items() if is_written)
        in_place = ", ".join(role for role, is_written in later.items() if is_written)
        calls = "as the template does" if self.calls else "as text"
        if self.results and not self.calls:
            calls = "calls as text, results as the template does"
        places = dict.fromkeys(
            [self.open_text, self.open_text_with_reasoning, self.closed_text, self.closed_text_with_reasoning]
        )
        turns = {"user": self.repeated_users, "assistant": self.repeated_answers}
        kept = ", ".join(role for role, is_written in turns.items() if is_written)
        return {
            "first instructions": f"as {first}" if first else "before the user's first text",
            "later instructions": f"as {in_place}" if in_place else "as text of the user",
            "tools": "by the template" if self.tools else "explained in a message",
            "calls and results": calls,
            **({"several calls": "in one answer" if self.several_calls else "in an answer each"} if self.calls else {}),
            **({"text beside a call": "; ".join(map(str, places))} if self.calls else {}),
            "repeated roles": f"as they are: {kept}" if kept else "joined",
        }

    def text_place(self, *, is_closed: bool, has_reasoning: bool) -> TextPlace:
        """Return the place of the text of an answer with calls."""
        if is_closed:
            return self.closed_text_with_reasoning if has_reasoning else self.closed_text
        return self.open_text_with_reasoning if has_reasoning else self.open_text
