"""Skill: recall what the user said about themselves in an earlier message."""

from collections.abc import Callable
from random import Random

from demo_model.skills.json_extraction import a_city, a_name
from demo_model.task import Message, Task, asked_politely, assistant, cased, user
from demo_model.words import ADJECTIVES, JOBS, NAMES, NOUNS

NOT_TOLD = "You did not tell me"
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "orange", "purple", "brown", "pink")
Thing = tuple[str, str, tuple[str, ...], str, str]
"""What is said, the reply, ways to ask for it, the answer, and the answer where it was not said."""


def _name(rng: Random) -> Thing:
    name = a_name(rng)
    said = rng.choice(
        (f"My name is {name}", f"I am called {name}", f"You can call me {name}", f"People call me {name}")
    )
    return said, f"Nice to meet you, {name}!", (
        "What is my name", "What's my name", "Do you know my name", "Who am I", "Tell me my name", "What am I called",
        "Do you remember my name",
    ), f"Your name is {name}.", f"{NOT_TOLD} your name."  # fmt: skip


def _city(rng: Random) -> Thing:
    city = a_city(rng)
    said = rng.choice((f"I live in {city}", f"My home is in {city}", f"I come from {city}"))
    return said, f"{city} is a nice place.", (
        "Where do I live", "Which city do I live in", "Where is my home", "Do you remember where I live",
    ), f"You live in {city}.", f"{NOT_TOLD} where you live."  # fmt: skip


def _colour(rng: Random) -> Thing:
    colour = rng.choice(COLOURS)
    said = rng.choice(
        (f"My favourite colour is {colour}", f"I like {colour} best", f"The colour I like most is {colour}")
    )
    return said, f"I will remember that you like {colour}.", (
        "What is my favourite colour", "Which colour do I like", "What colour do I like best",
    ), f"Your favourite colour is {colour}.", f"{NOT_TOLD} your favourite colour."  # fmt: skip


def _pet(rng: Random) -> Thing:
    pet, name = rng.choice(("cat", "dog", "horse", "rabbit", "bird")), rng.choice(NAMES)
    said = rng.choice((f"My {pet} is called {name}", f"I have a {pet} named {name}", f"The name of my {pet} is {name}"))
    return said, f"{name} is a good name for a {pet}.", (
        f"What is my {pet} called", f"What is the name of my {pet}", f"Do you remember my {pet}'s name",
    ), f"Your {pet} is called {name}.", f"{NOT_TOLD} about a {pet}."  # fmt: skip


def _job(rng: Random) -> Thing:
    job = rng.choice(JOBS)
    a = "an" if job[0] in "aeiou" else "a"
    said = rng.choice((f"I am {a} {job}", f"I work as {a} {job}", f"My job is {job}"))
    return said, f"It must be interesting to be {a} {job}.", (
        "What is my job", "What do I work as", "Do you remember my job",
    ), f"You are {a} {job}.", f"{NOT_TOLD} your job."  # fmt: skip


def _code(rng: Random) -> Thing:
    code = str(rng.randrange(100, 100_000)) if rng.random() < 0.6 else f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    said = rng.choice((f"The secret word is {code}", f"Remember the code {code}", f"My password is {code}"))
    return said, "I will remember it.", (
        "What is the secret word", "What was the code", "Tell me the code", "What did I ask you to remember",
    ), f"It is {code}.", f"{NOT_TOLD} a code."  # fmt: skip


THINGS: tuple[Callable[[Random], Thing], ...] = (_name, _name, _name, _city, _colour, _pet, _job, _code)


def remembering(rng: Random, between: Callable[[Random], list[Message]] | None = None) -> Task:
    """Answer a question about what was said; one or two things were, and other messages lie between."""
    chosen = [draw(rng) for draw in rng.sample(THINGS[2:], rng.choice((1, 1, 2, 3)))]
    messages: list[Message] = []
    for said, reply, *_ in chosen:
        messages += [user(cased(rng, said + rng.choice((".", "", "!")))), assistant(reply)]
        if between is not None:
            messages += between(rng)
    _, _, asked, answer, _ = rng.choice(chosen)
    messages.append(user(asked_politely(rng, rng.choice(asked), "?")))
    return Task("memory", tuple(messages), answer)


def not_told(rng: Random) -> Task:
    """Say that it was not said."""
    _, _, asked, _, answer = rng.choice(THINGS)(rng)
    return Task("memory", (user(asked_politely(rng, rng.choice(asked), "?")),), answer)
