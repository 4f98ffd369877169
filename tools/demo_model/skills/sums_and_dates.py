"""Skills: arithmetic with small numbers, and dates."""

from random import Random

from demo_model.fact_tables import DAYS, MONTHS, NUMBERS, ORDINALS
from demo_model.task import Check, Task, asked_politely, cased, one

MONTH_NAMES = tuple(MONTHS)


def total(rng: Random) -> Task:
    """Add, take away or multiply small numbers."""
    kind = rng.randrange(6)
    if kind == 5:
        a, b = rng.randrange(0, 11), rng.randrange(0, 11)
        sign, word, result = "*", "times", a * b
    else:
        a, b = (rng.randrange(rng.choice((11, 30, 100))) for _ in range(2))
        if kind < 3:
            sign, word, result = "+", "plus", a + b
        else:
            a, b = max(a, b), min(a, b)
            sign, word, result = "-", "minus", a - b
    middle = rng.choice((sign, sign, word))
    given = f"{a} {middle} {b}" if rng.random() < 0.8 or middle == word else f"{a}{sign}{b}"
    if max(a, b) <= 10 and middle == word and rng.random() < 0.4:
        given = f"{NUMBERS[a]} {middle} {NUMBERS[b]}"
    order = rng.choice((
        "What is {}", "How much is {}", "Calculate {}", "{} =", "{}", "What's {}", "Compute {}",
        "What do you get for {}",
        "Tell me what {} is", "Work out {}", "What does {} make",
    ))  # fmt: skip
    text = order.format(given)
    text = cased(rng, text) if order in ("{} =", "{}") else asked_politely(rng, text, "?")
    return one("sums", text, f"{a} {sign} {b} = {result}")


def date(rng: Random) -> Task:
    """Say what comes after or before a day or a month, and how long months are."""
    kind = rng.randrange(8)
    if kind == 0:
        place, step = rng.randrange(7), rng.choice((-1, 1))
        order = rng.choice(
            ("What day comes {} {}", "Which day is {} {}", "What is the day {} {}", "Name the day {} {}")
        )
        text = order.format("after" if step > 0 else "before", DAYS[place])
        return one("dates", asked_politely(rng, text, "?"), f"{DAYS[(place + step) % 7]}.")
    if kind == 1:
        place, step = rng.randrange(12), rng.choice((-1, 1))
        order = rng.choice(("Which month comes {} {}", "What month is {} {}", "What is the month {} {}",
                            "Name the month {} {}"))  # fmt: skip
        text = order.format("after" if step > 0 else "before", MONTH_NAMES[place])
        return one("dates", asked_politely(rng, text, "?"), f"{MONTH_NAMES[(place + step) % 12]}.")
    if kind == 2:
        name = rng.choice(MONTH_NAMES)
        order = rng.choice(("How many days are in {}", "How many days does {} have", "How long is {}",
                            "What is the number of days in {}"))  # fmt: skip
        return one("dates", asked_politely(rng, order.format(name), "?"), f"{name} has {MONTHS[name]} days.")
    if kind == 3:
        place = rng.randrange(12)
        order = rng.choice(("Which is the {} month", "What is the {} month of the year", "Name the {} month"))
        text = order.format(ORDINALS[place])
        return one("dates", asked_politely(rng, text, "?"), f"{MONTH_NAMES[place]}.")
    if kind in (4, 5):
        place, days = rng.randrange(7), rng.randrange(2, 7)
        order = rng.choice(("What day is {} days after {}", "Which day comes {} days after {}",
                            "It is {1}. What day is it in {0} days"))  # fmt: skip
        text = order.format(rng.choice((str(days), NUMBERS[days])), DAYS[place])
        steps = ", ".join(DAYS[(place + step) % 7] for step in range(1, days + 1))
        return one("dates", asked_politely(rng, text, "?"), f"{steps}.", _ends_with(f"{DAYS[(place + days) % 7]}."))
    place, step = rng.randrange(12), rng.choice((-1, 1))
    month = MONTH_NAMES[place]
    day = rng.choice((rng.randrange(1, MONTHS[month] + 1), 1 if step < 0 else MONTHS[month]))
    order = rng.choice(
        ("What is the date {} {}", "Which date comes {} {}", "What is the day {} {}", "Name the date {} {}")
    )
    text = order.format("after" if step > 0 else "before", f"{day} {month}")
    day += step
    if day < 1:
        month = MONTH_NAMES[(place - 1) % 12]
        day = MONTHS[month]
    elif day > MONTHS[month]:
        month, day = MONTH_NAMES[(place + 1) % 12], 1
    return one("dates", asked_politely(rng, text, "?"), f"{day} {month}.")


def _ends_with(end: str) -> Check:
    return lambda said: said.endswith(end)
