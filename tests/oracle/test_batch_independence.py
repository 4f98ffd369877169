"""A seeded request samples the same tokens alone, in 2 batches, after a preemption and after a flush.

`make test-all` takes 50 batches.
"""

import random

import pytest

from chairlift import LLM, SamplingParams, StructuredOutput
from chairlift.core.structured_output import ReasoningPrefix
from chairlift.llm.builtin_models import RANDOM
from support_oracle import oracle, own_prompt, shared_prompt
from support_shares import FULL, each_value

BATCHES = 50 if FULL else 2
MADE_BATCHES = 6 if FULL else 3

DRAWN = {
    "plain": SamplingParams(temperature=1.0, seed=7, max_tokens=24, ignore_eos=True),
    "cut": SamplingParams(temperature=1.3, top_k=40, top_p=0.9, min_p=0.01, seed=-3, max_tokens=24, ignore_eos=True),
    "penalised": SamplingParams(
        temperature=0.9, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.7, seed=2**62,
        logit_bias={11: 4.0, 12: -100.0}, min_tokens=5, max_tokens=24, stop_token_ids=(30, 31), logprobs=3,
    ),
    "typical": SamplingParams(
        typical_p=0.8, epsilon_cutoff=0.002, eta_cutoff=0.01, no_repeat_ngram_size=2, bad_words_ids=((20,), (21, 22)),
        allowed_token_ids=list(range(8, 200)), seed=5, max_tokens=24, ignore_eos=True,
    ),
    "several": SamplingParams(n=3, temperature=1.1, seed=11, max_tokens=24, ignore_eos=True, prompt_logprobs=2),
}  # fmt: skip
PROMPT = list(own_prompt(3, 41))


@pytest.fixture(scope="module", params=("llama", "gemma3"))
def folder(request: pytest.FixtureRequest) -> str:
    return str(oracle(request.param, 20 if request.param == "gemma3" else None).folder)


def neighbours(rng: random.Random, count: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Make requests of every kind, some with the same beginning as PROMPT."""
    prompts, params = [], []
    for number in range(count):
        kinds = (own_prompt(rng.randrange(40), rng.randrange(1, 70)), shared_prompt(number, 40, rng.randrange(1, 20)))
        prompts.append(list(rng.choice((*kinds, (*PROMPT[:32], *kinds[0])))))
        sampled = SamplingParams(
            temperature=rng.choice((0.7, 1.0)), top_p=rng.choice((0.8, 1.0)), seed=rng.randrange(99)
        )
        greedy = SamplingParams(temperature=0)
        chosen = rng.choice((sampled, greedy, *DRAWN.values()))
        fields = {name: getattr(chosen, name) for name in ("temperature", "top_p", "seed", "repetition_penalty")}
        params.append(SamplingParams(**fields, max_tokens=rng.randrange(1, 30), ignore_eos=True))
    return prompts, params


@pytest.mark.full
@pytest.mark.parametrize("name", DRAWN)
def test_the_batch_does_not_change_a_draw(folder: str, name: str) -> None:
    with LLM(folder, dtype="float64", num_blocks=600, max_chunk_tokens=16) as llm:
        alone = llm.generate([PROMPT], DRAWN[name], use_tqdm=False)[0].outputs
        for batch in range(BATCHES):
            rng = random.Random(batch)
            prompts, params = neighbours(rng, rng.randrange(1, 16))
            place = rng.randrange(len(prompts) + 1)
            prompts.insert(place, PROMPT)
            params.insert(place, DRAWN[name])
            if rng.random() < 0.3:
                llm.flush_cache()
            mine = llm.generate(prompts, params, use_tqdm=False)[place].outputs
            assert [choice.token_ids for choice in mine] == [choice.token_ids for choice in alone]
            assert mine[0].seed == DRAWN[name].seed
            for one, other in zip(mine[0].token_logprobs or (), alone[0].token_logprobs or (), strict=True):
                assert one.token_id == other.token_id
                assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("architecture", "name", "overlap"), each_value(["llama", "qwen3"], DRAWN, [False, True], count=10)
)
def test_a_preemption_does_not_change_a_draw(architecture: str, name: str, overlap: bool) -> None:
    folder, params = oracle(architecture, None).folder, DRAWN[name]
    options = {"dtype": "float64", "block_size": 4, "max_chunk_tokens": 16, "overlap": overlap}
    with LLM(folder, num_blocks=900, **options) as roomy:
        (alone,) = roomy.generate([PROMPT], params, use_tqdm=False)
    others = (
        [] if params.n > 1 else [PROMPT, list(own_prompt(2, 40))]
    )  # the victim is the sequence with the least unshared work
    long = SamplingParams(temperature=0, max_tokens=29, ignore_eos=True)
    with LLM(folder, num_blocks=36 if others else 21, max_model_len=70, **options) as tight:
        made = tight.generate([*others, PROMPT], [*[long] * len(others), params], use_tqdm=False)[-1]
        assert tight.scheduler_state()["preemptions"] > 0
        assert params.n > 1 or "preempted" in [event.name for event in made.timeline.events]
        assert [choice.token_ids for choice in made.outputs] == [choice.token_ids for choice in alone.outputs]
        assert tight.check_integrity() == []


MADE = {
    "masked": SamplingParams(
        structured=StructuredOutput(regex="[a-z]{4,9}( [a-z]{4,9}){4}"), n=2, temperature=1.2, seed=3, max_tokens=90
    ),
    "processed": SamplingParams(logits_processors={"top": {"top_k": 5}}, temperature=1.4, seed=8, max_tokens=24),
    "reasoned": SamplingParams(
        structured=StructuredOutput(
            regex="[a-z]{4,9}( [a-z]{4,9}){2}", reasoning_prefix=ReasoningPrefix(ends=("q", "z"), is_open=True)
        ),
        temperature=1.2, seed=5, max_tokens=90,
    ),
    "both": SamplingParams(
        structured=StructuredOutput(json_schema={"type": "array", "items": {"type": "integer"}, "maxItems": 9}),
        logits_processors={"cold": {"temperature": 0.6}}, temperature=1.1, seed=4, max_tokens=60,
    ),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(("name", "overlap"), each_value(MADE, [False, True]))
def test_the_batch_does_not_change_what_a_structure_or_a_processor_makes(name: str, overlap: bool) -> None:
    """With other requests of the same kinds, some of which are preempted because blocks run out."""
    prompt, processors = (
        "the sky is blue, and it is " * 3,
        {"top": "transformers:TopKLogitsWarper", "cold": "transformers:TemperatureLogitsWarper"},
    )
    options = {"dtype": "float64", "block_size": 4, "logits_processor_factories": processors, "overlap": overlap}
    with LLM(RANDOM, num_blocks=900, **options) as roomy:
        (alone,) = roomy.generate([prompt], MADE[name], use_tqdm=False)
    plain = SamplingParams(temperature=1.0, max_tokens=90, ignore_eos=True)
    with LLM(RANDOM, num_blocks=60, max_model_len=200, **options) as tight:
        for batch in range(MADE_BATCHES):
            rng = random.Random(batch)
            others = [rng.choice((plain, *MADE.values())) for _ in range(rng.randrange(3, 12))]
            prompts = [prompt[: rng.randrange(1, len(prompt))] for _ in others]
            place = rng.randrange(len(others) + 1)
            prompts.insert(place, prompt)
            others.insert(place, MADE[name])
            mine = tight.generate(prompts, others, use_tqdm=False)[place]
            assert mine.error is None
            assert [choice.token_ids for choice in mine.outputs] == [choice.token_ids for choice in alone.outputs]
        assert tight.scheduler_state()["preemptions"] > 0 and tight.check_integrity() == []


@pytest.mark.share(1)
def test_a_flushed_cache_does_not_change_a_draw(folder: str) -> None:
    params = DRAWN["cut"]
    with LLM(folder, dtype="float64", num_blocks=200) as llm:
        first, again = (llm.generate([PROMPT], params, use_tqdm=False)[0] for _ in range(2))
        assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 32)
        assert llm.flush_cache() > 0
        flushed = llm.generate([PROMPT], params, use_tqdm=False)[0]
        assert flushed.usage.cached_tokens == 0
        assert first.outputs[0].token_ids == again.outputs[0].token_ids == flushed.outputs[0].token_ids


def test_a_request_without_a_seed_reports_one_that_repeats_it(folder: str) -> None:
    with LLM(folder, dtype="float64", num_blocks=200) as llm:
        free = SamplingParams(temperature=1.0, max_tokens=12)
        first, second = (llm.generate([PROMPT], free, use_tqdm=False)[0].outputs[0] for _ in range(2))
        assert first.seed != second.seed
        again = SamplingParams(temperature=1.0, max_tokens=12, seed=first.seed)
        assert llm.generate([PROMPT], again, use_tqdm=False)[0].outputs[0].token_ids == first.token_ids
