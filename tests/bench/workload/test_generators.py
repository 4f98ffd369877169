"""Generators: the same seed gives the same work for ever, lengths keep their bounds and their shape."""

from random import Random

import pytest

from chairlift.bench.workload.generators import DEFAULT_REQUESTS, NAMES, between, bounded_pareto, generate
from support_shares import for_each

# Of generate(name, vocab_size=1000, seed=7, count=5). They change only when a workload is changed on purpose.
DIGESTS = {
    "longtail": "81330f7dd0c23cb6",
    "broadtail": "66746abd4185a95b",
    "uniform": "a92765277d621962",
    "prefix": "6347a320379dd0d0",
    "w1": "67cedb7a0ace1449",
    "w2": "64e54c9496d46d7a",
    "w3": "17672112f906ca09",
}


def lengths(name: str, **given: int) -> list[tuple[int, int]]:
    made = generate(name, vocab_size=50, **given)
    return [(len(item.prompt_token_ids), item.output_tokens) for item in made.items]


@for_each("name", NAMES)
def test_the_work_of_a_seed_never_changes(name: str) -> None:
    assert generate(name, vocab_size=1000, seed=7, count=5).digest()[:16] == DIGESTS[name]


@for_each("name", NAMES)
def test_another_seed_is_other_work_and_a_smaller_count_is_its_beginning(name: str) -> None:
    made = generate(name, vocab_size=1000, seed=1, count=6)
    assert generate(name, vocab_size=1000, seed=1, count=4).items == made.items[:4]
    assert generate(name, vocab_size=1000, seed=2, count=6).items != made.items
    assert (made.name, made.seed) == (name, 1)


@for_each("name", NAMES)
@for_each("vocab_size", [1, 7, 60_000])
def test_ids_stay_below_the_vocabulary_and_lengths_do_not_depend_on_it(name: str, vocab_size: int) -> None:
    made = generate(name, vocab_size=vocab_size, seed=3, count=5)
    assert all(0 <= token < vocab_size for item in made.items for token in item.prompt_token_ids)
    assert [(len(item.prompt_token_ids), item.output_tokens) for item in made.items] == lengths(name, seed=3, count=5)
    assert all((item.at, item.tenant, item.priority, item.timeout) == (0.0, "", 0, None) for item in made.items)


@for_each(
    ("name", "prompts", "outputs"),
    [
        ("longtail", (8, 24), (16, 512)), ("broadtail", (16, 64), (16, 512)), ("uniform", (16, 16), (44, 44)),
        ("prefix", (544, 544), (32, 32)),
        ("w1", (16, 256), (16, 128)), ("w2", (544, 544), (32, 32)), ("w3", (1024, 2048), (64, 192)),
    ],
)  # fmt: skip
def test_lengths_keep_their_bounds(name: str, prompts: tuple[int, int], outputs: tuple[int, int]) -> None:
    seen = lengths(name, count=300)
    assert min(prompt for prompt, _ in seen) >= prompts[0] and max(prompt for prompt, _ in seen) <= prompts[1]
    assert min(output for _, output in seen) >= outputs[0] and max(output for _, output in seen) <= outputs[1]


def test_each_name_has_its_own_number_of_requests() -> None:
    for name, count in DEFAULT_REQUESTS.items():
        assert len(generate(name, vocab_size=9).items) == count
    assert [DEFAULT_REQUESTS[name] for name in ("w1", "w2", "w3")] == [32, 64, 8]


@pytest.mark.parametrize(
    ("name", "short", "long", "share", "mean"),
    [("longtail", (16, 32), (448, 512), 0.05, 44), ("broadtail", (16, 64), (256, 512), 0.1, 65)],
)
def test_a_tailed_load_has_many_short_outputs_and_a_few_long_ones(
    name: str, short: tuple[int, int], long: tuple[int, int], share: float, mean: float
) -> None:
    outputs = [output for _, output in lengths(name, count=6000)]
    assert sum(outputs) / len(outputs) == pytest.approx(mean, rel=0.05)
    few, many = [output for output in outputs if output > 100], [output for output in outputs if output <= 100]
    assert (min(few), max(few)) == long
    assert min(many) == short[0] and 0.95 * short[1] < max(many) <= short[1]
    assert sum(many) / len(many) < sum(short) / 2  # of a Pareto, not in the middle
    assert len(few) / len(outputs) == pytest.approx(share, rel=0.15)


def test_uniform_has_the_means_of_longtail() -> None:
    [(prompt, output)] = set(lengths("uniform", count=10))
    tailed = lengths("longtail", count=20_000)
    assert sum(prompt for prompt, _ in tailed) / len(tailed) == pytest.approx(prompt, rel=0.02)
    assert sum(output for _, output in tailed) / len(tailed) == pytest.approx(output, rel=0.02)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_a_bounded_pareto_has_the_distribution_function_of_its_source(alpha: float) -> None:
    rng, low, high = Random(5), 16, 512
    drawn = [bounded_pareto(rng, low, high, alpha) for _ in range(20_000)]
    assert min(drawn) >= low and max(drawn) <= high
    for at in (20, 32, 64, 200):
        expected = (1 - (low / at) ** alpha) / (1 - (low / high) ** alpha)
        assert sum(value < at for value in drawn) / len(drawn) == pytest.approx(expected, abs=0.015)


def test_between_reaches_both_ends() -> None:
    rng = Random(1)
    assert {between(rng, 3, 5) for _ in range(100)} == {3, 4, 5}


def test_prefix_has_eight_groups_in_turn_and_w2_one() -> None:
    made = generate("prefix", vocab_size=9000, count=24)
    prefixes = [item.prompt_token_ids[:512] for item in made.items]
    assert len(set(prefixes)) == 8 and prefixes[:8] == prefixes[8:16] == prefixes[16:]
    assert len({item.prompt_token_ids[512:] for item in made.items}) == 24
    assert len({item.prompt_token_ids[:512] for item in generate("w2", vocab_size=9000).items}) == 1
