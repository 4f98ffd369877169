"""Skill: write JSON with values from a sentence."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from demo_model.fact_tables import DAYS, MONTHS
from demo_model.skills.word_tasks import new_word
from demo_model.task import Check, Task, one
from demo_model.words import ADJECTIVES, CITIES, JOBS, NAMES, NOUNS

Record = tuple[str, dict[str, Any]]


def a_name(rng: Random) -> str:
    """Draw a name, with a family name now and then."""
    first = rng.choice(NAMES) if rng.random() < 0.8 else new_word(rng).title()
    return f"{first} {new_word(rng).title()}" if rng.random() < 0.4 else first


def a_city(rng: Random) -> str:
    """Draw a city, known or made up."""
    return rng.choice(CITIES) if rng.random() < 0.8 else new_word(rng).title()


def _person(rng: Random) -> Record:
    name, age, city, job = a_name(rng), rng.randrange(5, 99), a_city(rng), rng.choice(JOBS)
    a = "an" if job[0] in "aeiou" else "a"
    text = rng.choice((
        f"{name} is {age} years old, lives in {city} and works as {a} {job}.",
        f"{name} is {a} {job} from {city} and is {age} years old.", f"My friend {name}, {a} {job} in {city}, is {age}.",
        f"In {city} lives {name}, {age}, {a} {job}.", f"I am {name}, {age} years old, {a} {job} in {city}.",
    ))  # fmt: skip
    return text, {"name": name, "age": age, "city": city, "job": job}


def _purchase(rng: Random) -> Record:
    name, item, count, price = a_name(rng), rng.choice(NOUNS), rng.randrange(2, 100), rng.randrange(1, 1000)
    colour = rng.choice(("red", "blue", "green", "white", "black", "yellow"))
    text = rng.choice((
        f"{name} orders {count} {colour} {item}s for {price} euros.",
        f"{count} {colour} {item}s for {name}, {price} euros.",
        f"Please send {name} {count} {item}s in {colour}. They cost {price} euros.",
        f"{name} paid {price} euros for {count} {colour} {item}s.",
    ))  # fmt: skip
    return text, {"customer": name, "item": item, "count": count, "price": price, "colour": colour}


def _event(rng: Random) -> Record:
    title, day, city = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}", rng.choice(DAYS), a_city(rng)
    hour, guests = f"{rng.randrange(7, 23)}:{rng.choice(('00', '15', '30', '45'))}", rng.randrange(2, 300)
    text = rng.choice((
        f"The {title} meeting is on {day} at {hour} in {city} with {guests} guests.",
        f"On {day} at {hour} {guests} guests meet in {city} for the {title}.",
        f"{guests} guests are invited to the {title} in {city}, {day}, {hour}.",
    ))  # fmt: skip
    return text, {"title": title, "day": day, "time": hour, "city": city, "guests": guests}


def _trip(rng: Random) -> Record:
    start, goal = rng.sample(CITIES, 2)
    name, day, month = a_name(rng), rng.randrange(1, 29), rng.choice(tuple(MONTHS))
    text = rng.choice((
        f"{name} travels from {start} to {goal} on {day} {month}.",
        f"On {day} {month} {name} goes from {start} to {goal}.",
        f"A ticket for {name} from {start} to {goal}, {day} {month}.",
    ))  # fmt: skip
    return text, {"name": name, "from": start, "to": goal, "day": day, "month": month}


RECORDS: tuple[Callable[[Random], Record], ...] = (_person, _person, _purchase, _event, _trip)


def filling(rng: Random) -> Task:
    """Fill in some fields, in the order in which they were asked for."""
    text, record = rng.choice(RECORDS)(rng)
    keys = rng.sample(tuple(record), rng.randrange(2, len(record) + 1))
    answer = {key: record[key] for key in keys}
    empty = json.dumps({key: 0 if isinstance(record[key], int) else "" for key in keys})
    listed = ", ".join(keys[:-1]) + f" and {keys[-1]}"
    asked = rng.choice((
        f"Fill in the JSON from the text.\nText: {text}\nJSON: {empty}", f"Fill in this JSON: {empty}\n{text}",
        f"Text: {text}\nFill in: {empty}", f"{text}\nFill this form: {empty}", f"Give me JSON with {listed}.\n{text}",
        f"Read the text and answer in JSON with the keys {listed}.\nText: {text}",
        f"{text} Write that as JSON with {listed}.",
        f"Make JSON with {listed} from: {text}", f"Complete {empty} with: {text}",
        f"JSON with {listed}, please: {text}",
    ))  # fmt: skip
    return one("json", asked, json.dumps(answer, ensure_ascii=False), _is_json(answer))


def _is_json(wanted: dict[str, Any]) -> Check:
    def check(said: str) -> bool:
        try:
            return bool(json.loads(said) == wanted)
        except ValueError:
            return False

    return check
