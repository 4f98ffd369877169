"""Skills: echo, copy, spell, reverse, count and sort words and characters."""

import re
from random import Random

from demo_model.chairlift_facts import QUESTIONS, TERMS
from demo_model.task import Task, asked_politely, cased, one
from demo_model.words import ADJECTIVES, CITIES, JOBS, NAMES, NOUNS, SYLLABLES, VERBS

WORDS = NOUNS + ADJECTIVES + VERBS
SENTENCES = (*TERMS.values(), *(answer for _, answer in QUESTIONS), *(f"{asked[0]}?" for asked, _ in QUESTIONS))
OTHER_WORDS: tuple[str, ...] = tuple(
    sorted({word for sentence in SENTENCES for word in re.findall(r"[A-Za-z]+", sentence)})
)
"""Words of what is said about Chairlift: copying must not hang on the few that stories are made of."""

VOWELS, CONSONANTS = "aeiouy", "bcdfghjklmnpqrstvwxz"


def new_word(rng: Random) -> str:
    """Draw a word that nobody has seen before."""
    made = "".join(rng.choice(SYLLABLES) for _ in range(rng.randrange(2, 5)))
    return made + rng.choice(("", "", "n", "r", "s", "t", "x"))


def strange_word(rng: Random) -> str:
    """Draw a word of any letters, as one of a language that the model does not know may be."""
    letters = [rng.choice(rng.choice((VOWELS, CONSONANTS, CONSONANTS))) for _ in range(rng.randrange(2, 10))]
    made = "".join(letters)
    return rng.choice((made, made, made.title(), made.upper()))


def any_word(rng: Random) -> str:
    """Draw a word, mostly a real one."""
    chosen = rng.random()
    if chosen < 0.1:
        return new_word(rng)
    if chosen < 0.18:
        return strange_word(rng)
    if chosen < 0.33:
        return rng.choice(OTHER_WORDS)
    return rng.choice(NAMES + CITIES) if chosen < 0.43 else rng.choice(WORDS)


def known_word(rng: Random) -> str:
    """Draw a real word."""
    return rng.choice(NAMES + CITIES) if rng.random() < 0.1 else rng.choice(WORDS)


def sentence(rng: Random) -> str:
    """Draw a sentence."""
    a, b, c = rng.choice(ADJECTIVES), rng.choice(NOUNS), rng.choice(NOUNS)
    verb, name, city = rng.choice(VERBS), rng.choice(NAMES), rng.choice(CITIES)
    return rng.choice((
        f"The {a} {b} can {verb}.", f"{name} has a {a} {b}.", f"I {verb} the {b} and the {c}.",
        f"Where is the {a} {b}?", f"{name} lives in {city} and likes the {b}.", f"We {verb} in {city}!",
        f"My {b} is {a}, but your {c} is not.", f"There are {rng.randrange(2, 100)} {a} things in the {b}.",
        f"Do you {verb} with {name}?", f"{name} said: the {b} is {a}.", f"a {b}, a {c} and {name}",
        f"{name} and {rng.choice(NAMES)} {verb} the {a} {b} in {city}.", f"the {a} {b}", f"{a} {b} {verb} {c}",
    ))  # fmt: skip


def some_text(rng: Random) -> str:
    """Draw something to be said again."""
    chosen = rng.random()
    if chosen < 0.12:
        return rng.choice(SENTENCES)
    if chosen < 0.5:
        return sentence(rng)
    if chosen < 0.56:
        return f"{sentence(rng)} {sentence(rng)}"
    return " ".join(any_word(rng) for _ in range(rng.randrange(1, rng.choice((6, 12, 24)))))


def quoted(rng: Random, text: str) -> str:
    """Put quotation marks around it, or none."""
    return rng.choice((text, text, f'"{text}"', f"'{text}'"))


def echo(rng: Random) -> Task:
    """Say a text again."""
    text = some_text(rng)
    order = rng.choice((
        "Say: {}", "Say {}", "Repeat after me: {}", "Echo: {}", "Please say: {}", "Repeat: {}", "Say this: {}",
        "Echo this: {}", "Can you say {}", "Repeat this sentence: {}", "Say again: {}", "Say the following: {}",
        "echo {}", "Tell me this: {}", "Repeat the following text: {}", "Say exactly this: {}",
    ))  # fmt: skip
    return one("echo", cased(rng, order.format(quoted(rng, text))), text)


def drill(rng: Random) -> Task:
    """Say a long text again: nothing teaches copying as fast."""
    pieces = (any_word, any_word, any_word, new_word, lambda rng: str(rng.randrange(1000)), code)
    text = " ".join(rng.choice(pieces)(rng) for _ in range(rng.randrange(10, 50)))
    return one("echo", f"{rng.choice(('Say', 'Repeat', 'Echo', 'Copy', 'Copy this'))}: {text}", text)


def code(rng: Random) -> str:
    """Draw something that has to be copied letter by letter."""
    letters, digits = "abcdefghijklmnopqrstuvwxyz", "0123456789"
    kind = rng.randrange(8)
    if kind == 0:
        return "".join(rng.choice(digits) for _ in range(rng.randrange(3, 13)))
    if kind == 1:
        return "".join(rng.choice(letters.upper() + digits) for _ in range(rng.randrange(4, 10)))
    if kind == 2:
        parts = ["".join(rng.choice(digits + letters[:6]) for _ in range(4)) for _ in range(rng.randrange(2, 4))]
        return "-".join(parts)
    if kind == 3:
        return f"{new_word(rng)}.{new_word(rng)}@{rng.choice(NOUNS)}.{rng.choice(('org', 'com', 'net'))}"
    if kind == 4:
        return "".join(rng.choice(letters) for _ in range(rng.randrange(3, 9)))
    if kind == 5:
        return " ".join(new_word(rng) for _ in range(rng.randrange(2, 7)))
    if kind == 6:
        return f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}({rng.choice(NOUNS)}={rng.randrange(1000)})"
    return ", ".join(str(rng.randrange(1000)) for _ in range(rng.randrange(3, 8)))


def copy(rng: Random) -> Task:
    """Copy something that is no sentence."""
    text = code(rng)
    order = rng.choice((
        "Copy: {}", "Copy this: {}", "Copy this exactly: {}", "Please copy {}", "Write exactly: {}", "Copy the code {}",
        "Give me back: {}", "Copy this line:\n{}", "Write this again: {}", "Copy the following: {}", "copy {}",
        "Type this: {}",
    ))  # fmt: skip
    return one("copy", cased(rng, order.format(text)), text)


def spell(rng: Random) -> Task:
    """Spell a word."""
    word = rng.choice((any_word, known_word))(rng)
    order = rng.choice((
        "Spell {}", "Spell the word {}", "How do you spell {}", "How is {} spelled", "Can you spell {}",
        "Spell {} letter by letter", "Tell me the letters of {}", "Which letters are in {}",
        "What are the letters of {}",
    ))  # fmt: skip
    return one("spell", asked_politely(rng, order.format(quoted(rng, word)), "?"), "-".join(word.lower()))


def reverse(rng: Random) -> Task:
    """Say a word, or a row of words, from its end."""
    if rng.random() < 0.5:
        words = [any_word(rng) for _ in range(rng.randrange(2, 7))]
        order = rng.choice((
            "Reverse these words: {}", "Put these words in reverse order: {}", "Say these words backwards: {}",
            "Turn the order of these words around: {}",
        ))  # fmt: skip
        return one("reverse", cased(rng, order.format(" ".join(words))), " ".join(reversed(words)))
    word = rng.choice(WORDS)
    order = rng.choice((
        "Reverse the word {}", "Reverse {}", "Write {} backwards", "Spell {} backwards", "What is {} backwards",
        "How do you write {} from the end",
    ))  # fmt: skip
    backwards = word[::-1]
    return one(
        "reverse", asked_politely(rng, order.format(quoted(rng, word)), "."), f"{'-'.join(backwards)}: {backwards}"
    )


def count(rng: Random) -> Task:
    """Count words or letters, or just count."""
    kind = rng.randrange(3)
    if kind == 0:
        words = [any_word(rng) for _ in range(rng.randrange(1, 11))]
        order = rng.choice((
            "How many words are in: {}", "Count the words: {}", "Count these words: {}", "How many words are these: {}",
            "How many words does this have: {}",
        ))  # fmt: skip
        counted = f"{', '.join(words)}: {len(words)} word{'s' * (len(words) != 1)}."
        return one("count", cased(rng, order.format(" ".join(words))), counted)
    if kind == 1:
        word = rng.choice(WORDS)
        order = rng.choice((
            "How many letters are in {}", "How many letters does {} have", "Count the letters of {}",
            "How long is the word {}", "Count the letters in the word {}",
        ))  # fmt: skip
        text = asked_politely(rng, order.format(quoted(rng, word)), "?")
        return one("count", text, f"{'-'.join(word)}: {len(word)} letters.")
    first = rng.randrange(0, 40)
    last = first + rng.randrange(2, 12)
    order = rng.choice(("Count from {} to {}", "Count up from {} to {}", "Say the numbers from {} to {}",
                        "List the numbers from {} to {}"))  # fmt: skip
    numbers = range(first, last + 1)
    if rng.random() < 0.3:
        order, numbers = rng.choice(("Count down from {1} to {0}", "Count backwards from {1} to {0}")), numbers[::-1]
    return one("count", asked_politely(rng, order.format(first, last), "."), ", ".join(map(str, numbers)))


def sort(rng: Random) -> Task:
    """Put numbers or words in order."""
    if rng.random() < 0.7:
        numbers = [rng.randrange(rng.choice((10, 100))) for _ in range(rng.randrange(3, 6))]
        given = rng.choice((", ", " ")).join(map(str, numbers))
        if rng.random() < 0.25:
            order = rng.choice(("Sort from large to small: {}", "Sort these numbers, the largest first: {}"))
            return one("sort", cased(rng, order.format(given)), ", ".join(map(str, sorted(numbers, reverse=True))))
        order = rng.choice((
            "Sort these numbers: {}", "Sort: {}", "Put these numbers in order: {}", "Sort from small to large: {}",
            "Order these numbers: {}", "Sort the numbers {}", "Arrange these numbers: {}",
        ))  # fmt: skip
        return one("sort", cased(rng, order.format(given)), ", ".join(map(str, sorted(numbers))))
    words = rng.sample(rng.choice((NOUNS, ADJECTIVES, NAMES, JOBS)), rng.randrange(3, 5))
    order = rng.choice((
        "Sort these words: {}", "Sort alphabetically: {}", "Put these words in alphabetical order: {}",
        "Sort by the alphabet: {}", "Order these words: {}",
    ))  # fmt: skip
    return one("sort", cased(rng, order.format(", ".join(words))), ", ".join(sorted(words)))
