"""Skills: greetings, questions about Chairlift, facts, lists, and questions without a known answer."""

from collections.abc import Sequence
from random import Random

from demo_model.chairlift_facts import QUESTIONS, TERMS
from demo_model.fact_tables import CAPITALS, COLOURS, KINDS, LEGS, NUMBERS, OPPOSITES, PLANETS, SOUNDS, SYMBOLS
from demo_model.skills.word_tasks import new_word
from demo_model.task import Check, Task, asked_politely, cased, one
from demo_model.words import ADJECTIVES, CITIES, JOBS, NAMES, NOUNS, VERBS

UNKNOWN = "I don't know that."


def greeting(rng: Random) -> Task:
    """Greet, thank, part."""
    end = rng.choice(("", "", "!", ".", "!!", " :)"))
    kind, name = rng.randrange(6), rng.choice(NAMES)
    called = rng.choice(
        ("", "", " there", " Chairlift", " you", " friend", " model", " everybody", " again", " my friend")
    )
    if kind < 2:
        word = rng.choice(("Hello", "Hi", "Hey", "Good morning", "Good evening", "Good afternoon", "Good day",
        "Greetings",
                           "Hello hello", "Hi hi", "Howdy", "Welcome"))  # fmt: skip
        more = rng.choice(("", "", "", " Nice to meet you", " Nice to see you", " I have a question", " Are you there?",
                           " Can you help me?", " I am new here"))  # fmt: skip
        return one(
            "greeting", cased(rng, word + called + (end or ("," if more else "")) + more), "Hello! How can I help you?"
        )
    if kind == 2:
        word = rng.choice(("Hello", "Hi", "Hey", "Good morning", "Good evening", "Good day"))
        text = rng.choice((f"{word}, I am {name}", f"{word}, this is {name}", f"{word}, {name} here",
        f"{word}! I'm {name}",
                           f"{word}{called}, I am {name}"))  # fmt: skip
        return one("greeting", cased(rng, text + end), f"Hello {name}! How can I help you?")
    if kind == 3:
        word = rng.choice(("", "", "Hello, ", "Hi, ", "Hey, ", "Hi there, ", "Good morning, ", "Hello! "))
        asked = rng.choice(("how are you", "how are you today", "how is it going", "how do you do", "are you well",
                            "how are you doing", "is everything fine"))  # fmt: skip
        text = word + asked if word.endswith(", ") else word + asked[0].upper() + asked[1:]
        return one(
            "greeting", cased(rng, text + rng.choice(("?", "?", "", "??"))), "I am fine, thank you. How can I help you?"
        )
    if kind == 4:
        word = rng.choice(("Thanks", "Thank you", "Many thanks", "Thank you very much", "Thanks a lot", "Great, thanks",
                           "OK, thank you", "Thank you so much", "Perfect, thanks"))  # fmt: skip
        more = rng.choice(("", "", " for your help", " for that", " for the answer", f", {name}"))
        return one("greeting", cased(rng, word + called * (not more) + more + end), "You are welcome!")
    word = rng.choice(("Goodbye", "Bye", "Bye bye", "See you", "See you later", "Good night", "Until tomorrow",
    "Farewell",
                       "I have to go, bye", "See you soon", "That was all, bye"))  # fmt: skip
    return one("greeting", cased(rng, word + called + end), "Goodbye! See you soon.")


def about(rng: Random) -> Task:
    """Answer a question about Chairlift and batching."""
    if rng.random() < 0.55:
        term = rng.choice(tuple(TERMS))
        order = rng.choice((
            "What is {}", "Explain {}", "What does {} mean", "Tell me about {}", "Can you explain {}",
            "What do you mean by {}",
            "Describe {}", "Do you know what {} is", "Explain to me what {} is", "I want to know what {} is",
            "What exactly is {}", "Tell me what {} is",
        ))  # fmt: skip
        return one("about", asked_politely(rng, order.format(term), "?"), TERMS[term])
    asked, answer = rng.choice(QUESTIONS)
    return one("about", asked_politely(rng, rng.choice(asked), "?"), answer)


def plain(rng: Random) -> str:
    """Say some things about Chairlift that nobody asked for."""
    return " ".join(rng.sample(tuple(TERMS.values()), rng.randrange(2, 5)))


def fact(rng: Random) -> Task:
    """Look something up in a table."""
    orders, answer = rng.choice((_capital, _capital, _capital_of, _symbol, _legs, _colour, _sound, _opposite, _planet))(
        rng
    )
    return one("facts", asked_politely(rng, rng.choice(orders), "?"), answer)


def _capital(rng: Random) -> tuple[Sequence[str], str]:
    country = rng.choice(tuple(CAPITALS))
    return (
        f"What is the capital of {country}", f"Which city is the capital of {country}",
        f"What's the capital of {country}",
        f"Name the capital of {country}", f"Tell me the capital of {country}", f"Do you know the capital of {country}",
        f"What is {country}'s capital", f"The capital of {country} is",
    ), f"The capital of {country} is {CAPITALS[country]}."  # fmt: skip


def _capital_of(rng: Random) -> tuple[Sequence[str], str]:
    country = rng.choice(tuple(CAPITALS))
    city = CAPITALS[country]
    return (
        f"{city} is the capital of which country", f"Of which country is {city} the capital",
        f"Which country has the capital {city}",
        f"Whose capital is {city}", f"What country has {city} as its capital",
    ), f"{city} is the capital of {country}."  # fmt: skip


def _symbol(rng: Random) -> tuple[Sequence[str], str]:
    element = rng.choice(tuple(SYMBOLS))
    return (
        f"What is the chemical symbol of {element}", f"What is the symbol for {element}",
        f"Which symbol stands for {element}",
        f"Name the chemical symbol of {element}", f"How is {element} written in chemistry",
        f"What's the symbol of {element}",
    ), f"The symbol of {element} is {SYMBOLS[element]}."  # fmt: skip


def _legs(rng: Random) -> tuple[Sequence[str], str]:
    animal = rng.choice(tuple(LEGS))
    a = "an" if animal[0] in "aeiou" else "a"
    return (
        f"How many legs does {a} {animal} have", f"How many legs has {a} {animal}",
        f"What number of legs does {a} {animal} have",
        f"On how many legs does {a} {animal} walk", f"Count the legs of {a} {animal}",
    ), f"{a.capitalize()} {animal} has {NUMBERS[LEGS[animal]] if LEGS[animal] else 'no'} legs."  # fmt: skip


def _colour(rng: Random) -> tuple[Sequence[str], str]:
    thing = rng.choice(tuple(COLOURS))
    return (
        f"What colour is {thing}", f"Which colour does {thing} have", f"What is the colour of {thing}",
        f"What color is {thing}", f"Tell me the colour of {thing}", f"Name the colour of {thing}",
    ), f"The colour of {thing} is {COLOURS[thing]}."  # fmt: skip


def _sound(rng: Random) -> tuple[Sequence[str], str]:
    animal = rng.choice(tuple(SOUNDS))
    a = "an" if animal[0] in "aeiou" else "a"
    return (
        f"What sound does {a} {animal} make", f"Which sound does {a} {animal} make", f"What does {a} {animal} say",
        f"How does {a} {animal} sound", f"Tell me the sound of {a} {animal}",
    ), f"{a.capitalize()} {animal} {SOUNDS[animal]}."  # fmt: skip


def _opposite(rng: Random) -> tuple[Sequence[str], str]:
    word = rng.choice(tuple(OPPOSITES))
    return (
        f"What is the opposite of {word}", f"Name the opposite of {word}", f"What's the opposite of {word}",
        f"Which word is the opposite of {word}", f"Tell me the opposite of {word}", f"Give me the opposite of {word}",
    ), f"The opposite of {word} is {OPPOSITES[word]}."  # fmt: skip


def _planet(rng: Random) -> tuple[Sequence[str], str]:
    place = rng.randrange(8)
    ordinal = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")[place]
    return (
        f"Which is the {ordinal} planet from the sun", f"What is the {ordinal} planet", f"Name the {ordinal} planet",
        f"Which planet is the {ordinal} one from the sun", f"Tell me the {ordinal} planet of the sun",
    ), f"The {ordinal} planet is {PLANETS[place]}."  # fmt: skip


def listing(rng: Random) -> Task:
    """Name some things of a kind."""
    kind = rng.choice(tuple(KINDS))
    things = KINDS[kind]
    number = rng.randrange(2, min(7, len(things)) + 1)
    order = rng.choice((
        "List {} {}", "Name {} {}", "Give me {} {}", "Tell me {} {}", "I need {} {}", "Can you name {} {}",
        "Write a list of {} {}", "Give me a list of {} {}", "Which {} {} do you know", "Show me {} {}", "Say {} {}",
    ))  # fmt: skip
    text = order.format(rng.choice((str(number), NUMBERS[number])), kind)
    return one("lists", asked_politely(rng, text, "."), ", ".join(things[:number]), _lists(number, things))


def _lists(number: int, things: Sequence[str]) -> Check:
    def check(said: str) -> bool:
        named = said.rstrip(".").split(", ")
        return len(named) == len(set(named)) == number and set(named) <= set(things)

    return check


def unknown(rng: Random) -> Task:
    """Say that something is not known."""
    noun, other, name, city = rng.choice(NOUNS), rng.choice(NOUNS), rng.choice(NAMES), rng.choice(CITIES)
    word, verb, adjective = new_word(rng), rng.choice(VERBS), rng.choice(ADJECTIVES)
    text = rng.choice((
        f"Who wrote the book about the {adjective} {noun}", f"Who invented the {noun}",
        f"How old is {name} {word.title()}",
        f"What is the capital of {word.title()}", f"What does the word {word} mean",
        f"When was {name} {word.title()} born",
        f"How much does a {adjective} {noun} cost", f"What is the population of {city}", f"Who is the king of {city}",
        f"What is the weather in {city}", f"What time is it in {city}", f"How tall is the {noun} in {city}",
        f"How do I {verb} a {noun}", f"Why do people {verb} the {noun}", f"Where can I buy a {adjective} {noun}",
        f"Who won the game in {city}", f"How far is it from {city} to {rng.choice(CITIES)}",
        f"What happened in {rng.randrange(1000, 2020)}",
        f"Who is {name} {word.title()}", f"Is the {noun} more {adjective} than the {other}", f"What is the best {noun}",
        f"Where is my {noun}", f"Which {rng.choice(JOBS)} lives in {city}", f"What did {name} say about the {noun}",
        f"How many {adjective} {noun}s are in {city}", f"What is {word} {new_word(rng)}",
        f"Tell me the news from {city}",
        f"What is the phone number of {name}", f"Which {noun} is the most {adjective}",
        f"Can a {noun} {verb} a {other}",
    ))  # fmt: skip
    return one("unknown", asked_politely(rng, text, "?"), UNKNOWN)
