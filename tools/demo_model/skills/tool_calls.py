"""Skills: call a tool with arguments from the user's message, and report a tool's result."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from demo_model.fact_tables import DAYS
from demo_model.skills.json_extraction import a_city, a_name
from demo_model.skills.word_tasks import new_word, sentence
from demo_model.task import Check, Message, Task, asked_politely, user
from demo_model.words import ADJECTIVES, NOUNS, VERBS

Call = tuple[str, dict[str, Any]]
Draw = Callable[[Random], tuple[str, dict[str, Any]]]

KEYS = ("input", "x", "y", "a", "b", "value", "number", "text", "query", "name", "count", "size")
"""Names of parameters that programmers like."""


def tool(name: str, description: str, /, **parameters: str) -> dict[str, Any]:
    """Describe a tool as the chat completions API does; parameters are name=type."""
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _weather(rng: Random) -> tuple[str, dict[str, Any]]:
    city = a_city(rng)
    return rng.choice((f"What is the weather in {city}", f"How is the weather in {city}", f"Weather in {city}",
                       f"Is it raining in {city}", f"Tell me the weather in {city}")), {"city": city}  # fmt: skip


def _timer(rng: Random) -> tuple[str, dict[str, Any]]:
    minutes = rng.randrange(2, 120)
    return rng.choice((f"Set a timer for {minutes} minutes", f"Wake me in {minutes} minutes",
    f"Timer: {minutes} minutes",
                       f"Start a timer of {minutes} minutes")), {"minutes": minutes}  # fmt: skip


def _mail(rng: Random) -> tuple[str, dict[str, Any]]:
    name, text = a_name(rng), sentence(rng)
    return rng.choice((f"Send {name} a mail: {text}", f"Write to {name}: {text}", f"Mail to {name}: {text}",
                       f"Send this to {name}: {text}")), {"to": name, "text": text}  # fmt: skip


def _call(rng: Random) -> tuple[str, dict[str, Any]]:
    name = a_name(rng)
    return rng.choice((f"Call {name}", f"Phone {name}", f"Ring up {name}", f"I want to talk to {name}")), {"name": name}


def _search(rng: Random) -> tuple[str, dict[str, Any]]:
    query = rng.choice((f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}", f"{new_word(rng)} {rng.choice(NOUNS)}",
                        f"{rng.choice(NOUNS)} in {a_city(rng)}"))  # fmt: skip
    return rng.choice((f"Search for {query}", f"Look up {query}", f"Find {query} on the web", f"Search: {query}")), {
        "query": query
    }


def _book(rng: Random) -> tuple[str, dict[str, Any]]:
    people, day, name = rng.randrange(2, 20), rng.choice(DAYS), a_name(rng)
    return rng.choice((f"Book a table for {people} on {day}, name {name}",
    f"A table for {people} people on {day} for {name}",
                       f"Reserve a table on {day} for {people}, in the name of {name}")), {
        "people": people, "day": day, "name": name,
    }  # fmt: skip


def _note(rng: Random) -> tuple[str, dict[str, Any]]:
    text = sentence(rng)
    return rng.choice((f"Note: {text}", f"Write down: {text}", f"Make a note: {text}", f"Remember this: {text}")), {
        "text": text,
    }  # fmt: skip


def _play(rng: Random) -> tuple[str, dict[str, Any]]:
    title = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}".title()
    return rng.choice((f"Play {title}", f"Play the song {title}", f"I want to hear {title}", f"Put on {title}")), {
        "title": title,
    }  # fmt: skip


def _add(rng: Random) -> tuple[str, dict[str, Any]]:
    a, b = rng.randrange(1000), rng.randrange(1000)
    return rng.choice((f"Add {a} and {b}", f"What is {a} plus {b}", f"Sum of {a} and {b}", f"{a} + {b}")), {
        "a": a,
        "b": b,
    }


def _price(rng: Random) -> tuple[str, dict[str, Any]]:
    item = rng.choice((rng.choice(NOUNS), f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"))
    return rng.choice((f"What does a {item} cost", f"Price of a {item}", f"How much is a {item}")), {"item": item}


KNOWN: tuple[tuple[dict[str, Any], Draw, Callable[[Random], str]], ...] = (
    (tool("get_weather", "The weather in a city", city="string"), _weather,
     lambda rng: f"{rng.choice(('sunny', 'rain', 'snow', 'cloudy'))}, {rng.randrange(-9, 36)} degrees"),
    (tool("set_timer", "Set a timer", minutes="integer"), _timer, lambda rng: "the timer is set"),
    (tool("send_mail", "Send a mail", to="string", text="string"), _mail, lambda rng: "the mail was sent"),
    (tool("call", "Call somebody on the phone", name="string"), _call,
     lambda rng: rng.choice(("nobody answers", "the line is busy", "connected"))),
    (tool("search", "Search the web", query="string"), _search, lambda rng: f"{rng.randrange(2, 900)} pages found"),
    (tool("book_table", "Book a table", people="integer", day="string", name="string"), _book,
     lambda rng: rng.choice(("the table is booked", "no table is free"))),
    (tool("add_note", "Write a note down", text="string"), _note, lambda rng: "the note is saved"),
    (tool("play_song", "Play a song", title="string"), _play, lambda rng: rng.choice(("playing", "no such song"))),
    (tool("add", "Add two numbers", a="integer", b="integer"), _add, lambda rng: str(rng.randrange(2000))),
    (tool("get_price", "The price of a thing", item="string"), _price, lambda rng: f"{rng.randrange(1, 500)} euros"),
)  # fmt: skip
"""Tool, how it is asked for, what it may bring."""


TAKE_TEXT = ("send_mail", "add_note")
"""Tools for which everything to the last sign may be meant."""


def _unheard_of(rng: Random) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Draw a tool that nobody has heard of, what is said for it, and its arguments."""
    verb, noun = rng.choice(VERBS), rng.choice(NOUNS)
    name = rng.choice(
        (f"{verb}_{noun}", f"{verb}_{noun}", f"{new_word(rng)}_{rng.choice(('function', 'tool', noun))}", noun)
    )
    keys = rng.sample(rng.choice((NOUNS + ADJECTIVES, KEYS)), rng.randrange(1, 4))
    kinds = {key: rng.choice(("string", "string", "integer", "integer", "number", "boolean")) for key in keys}
    arguments = {key: _value(rng, kind) for key, kind in kinds.items()}
    said = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in arguments.items()}
    between = rng.choice((" ", " ", " = ", "=", ": "))
    listed = rng.choice((" and ", ", ")).join(f"{key}{between}{value}" for key, value in said.items())
    values = ", ".join(said.values())
    text = rng.choice((
        f"{verb.capitalize()} {rng.choice(('the ', 'a ', ''))}{noun} with {listed}", f"Use {name} with {listed}.",
        f"Call {name} with {listed}.", f"What is the value of {name}({values})?", f"Use the tool {name}: {listed}.",
        f"What is {name}({values})? Use the tool.", f"{name}({values})",
    )) if name != f"{verb}_{noun}" or rng.random() < 0.5 else f"{verb.capitalize()} a {noun} with {listed}"  # fmt: skip
    return tool(name, f"{verb.capitalize()} a {noun}", **kinds), text, arguments


def _value(rng: Random, kind: str) -> Any:
    if kind == "integer":
        return rng.randrange(1000)
    if kind == "number":
        return rng.randrange(1000) / 10
    if kind == "boolean":
        return rng.random() < 0.5
    return rng.choice((rng.choice(NOUNS), new_word(rng), a_name(rng)))


def tool_text(name: str, arguments: dict[str, Any]) -> str:
    """Write a call as the model has to."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def toolbox(rng: Random, first: dict[str, Any] | None = None) -> tuple[dict[str, Any], ...]:
    """Draw some tools, among them the given one."""
    others = [known[0] for known in rng.sample(KNOWN, rng.randrange(0, 4))]
    others += [_unheard_of(rng)[0] for _ in range(rng.choice((0, 0, 1, 2)))]
    if first is None:
        return tuple(others) or (KNOWN[0][0],)
    named = first["function"]["name"]
    box = [first, *(other for other in others if other["function"]["name"] != named)]
    rng.shuffle(box)
    return tuple(box)


def calling(rng: Random, box: tuple[dict[str, Any], ...] | None = None) -> Task:
    """Call the tool that fits; with a box given, one of those in it that is known."""
    within = [known for known in KNOWN if box is None or known[0] in box]
    if box is None and rng.random() < 0.45:
        chosen, text, arguments = _unheard_of(rng)
    elif within:
        chosen, draw, _ = rng.choice(within)
        text, arguments = draw(rng)
    else:
        return calling(rng)
    name = chosen["function"]["name"]
    if name not in TAKE_TEXT and not text.endswith((".", "!", "?")):
        text = asked_politely(rng, text, rng.choice((".", "?")))
    return Task(
        "tools", (user(text),), tool_text(name, arguments), box or toolbox(rng, chosen), _calls(name, arguments)
    )


def telling(rng: Random) -> Task:
    """Tell what a tool has brought."""
    chosen, draw, result = rng.choice(KNOWN)
    text, arguments = draw(rng)
    found = result(rng)
    name = chosen["function"]["name"]
    call: Message = {
        "role": "assistant", "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }  # fmt: skip
    messages = (user(text), call, {"role": "tool", "content": found})
    return Task("tool results", messages, f"The answer is: {found}.", toolbox(rng, chosen))


def _calls(name: str, arguments: dict[str, Any]) -> Check:
    def check(said: str) -> bool:
        if not (said.startswith("<tool_call>") and said.endswith("</tool_call>")):
            return False
        try:
            made = json.loads(said.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        except ValueError:
            return False
        return bool(made == {"name": name, "arguments": arguments})

    return check
