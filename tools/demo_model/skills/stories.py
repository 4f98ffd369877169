"""Skill: write a short story, from templates, about things that the user names."""

import re
from collections.abc import Sequence
from random import Random

from demo_model.task import Check, Task, asked_politely, one
from demo_model.words import ADJECTIVES, CITIES, NAMES, NOUNS

MAX_WORDS = 90
BEGINNINGS = (
    "Once upon a time there was a {a} {x}.", "There was once a {a} {x} that lived near a {y}.",
    "In {city} there lived a {a} {x}.", "One {b} morning {name} found a {x}.", "Long ago {name} had a {a} {x}.",
)  # fmt: skip
MIDDLES = (
    "One day the {x} met a {b} {y}.", "Every day the {x} looked at the {y} and wished for more.",
    "The {y} was {b}, and the {x} did not know what to do.",
    "Nobody believed that the {x} and the {y} could be friends.",
    "Then the wind came and carried the {y} away.", "The {x} asked the {y} for help.",
    "A storm came, and the {x} was afraid.",
)  # fmt: skip
TURNS = (
    "But the {y} was kind.", "So they went to {city} together.", "{name} heard of it and laughed.",
    "They talked until the moon was high.", "At last they found a {a} road.", "It was a long and {b} way.",
)  # fmt: skip
ENDS = (
    "From that day on they were friends.", "And the {x} was never {b} again.", "They came home tired and happy.",
    "That is how the {x} found the {y}.", "And nobody waited alone any more.", "In the end all was well.",
)  # fmt: skip


def story(rng: Random) -> Task:
    """Tell a short story about two things."""
    x, y = rng.sample(NOUNS, 2)
    order = rng.choice((
        "Tell me a story about a {} and a {}", "Tell me a short story about a {} and a {}",
        "Write a story about a {} and a {}",
        "Write a short story with a {} and a {}", "I want a story about a {} and a {}",
        "Make up a story about a {} and a {}",
        "Tell a tale of a {} and a {}", "Can you tell me a story about a {} and a {}",
    ))  # fmt: skip
    words = {
        "x": x, "y": y, "a": rng.choice(ADJECTIVES), "b": rng.choice(ADJECTIVES), "name": rng.choice(NAMES),
        "city": rng.choice(CITIES),
    }  # fmt: skip
    parts = [rng.choice(BEGINNINGS), *rng.sample(MIDDLES, 2), *rng.sample(TURNS, rng.randrange(1, 3)), rng.choice(ENDS)]
    text = " ".join(part.format(**words) for part in parts)
    if y not in text:
        text = text.replace(parts[-1].format(**words), f"That is how the {x} found the {y}.")
    return one("stories", asked_politely(rng, order.format(x, y), "."), text, _is_story((x, y)))


def plain(rng: Random) -> str:
    """Tell a story that nobody asked for."""
    return story(rng).answer


def _is_story(things: Sequence[str]) -> Check:
    def check(said: str) -> bool:
        words = re.findall(r"[a-z]+", said.lower())
        names_them = all(thing in words for thing in things)
        return names_them and said.endswith(".") and said.count(".") >= 3 and len(words) <= MAX_WORDS

    return check
