"""A slow numpy reference of the sampler; makers of sequences, masks and samplers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from chairlift.core.sampling_params import MODEL_DEFAULTS, SamplingParams
from chairlift.engine.step_plan import NewSequence, TokenMasks
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest, compute_lm_head_output
from chairlift.model.sampling.philox import uniforms
from chairlift.model.sampling.sampler import Sampler

EOS = (3, 5)
VOCAB = 40


def params(**fields: object) -> SamplingParams:
    """Make resolved parameters; fields that are not given are neutral."""
    return SamplingParams(**{**MODEL_DEFAULTS, **fields}).with_defaults({}, max_tokens=100, seed=0)


def sequence(
    slot: int, params: SamplingParams, prompt: tuple[int, ...] = (1, 2), outputs: tuple[int, ...] = (), **more: object
) -> NewSequence:
    """Make the NewSequence that a runner gets."""
    new_sequence = NewSequence(slot, prompt + outputs, len(outputs), params, EOS)
    return replace(new_sequence, **more)


def head_of(logits: Tensor) -> Callable[[LogitsRequest], LMHeadOutput]:
    """Make a head that returns these logits [R, V], and does not change them."""
    return partial(compute_lm_head_output, logits.clone())


def masks_of(vocab_size: int, allowed: Mapping[int, set[int]]) -> TokenMasks:
    """Make the masks of some sample rows, given the allowed tokens by row index."""
    bits = np.zeros((len(allowed), -(-vocab_size // 32) * 32), np.uint8)
    for row, tokens in enumerate(allowed.values()):
        bits[row, sorted(tokens)] = 1
    return TokenMasks(np.array(list(allowed), np.int32), np.packbits(bits, axis=1, bitorder="little").view(np.int32))


def processed_logits(raw: np.ndarray, sequence: NewSequence) -> np.ndarray:
    """Apply penalties, bias and bans to raw logits [V]; no processors, no masks."""
    params, logits = sequence.params, raw.astype(np.float64).copy()
    outputs = (
        sequence.token_ids[len(sequence.token_ids) - sequence.num_output_tokens :] if sequence.num_output_tokens else ()
    )
    for token in range(len(raw)):
        if token in sequence.token_ids:
            logits[token] = (
                logits[token] / params.repetition_penalty
                if logits[token] > 0
                else logits[token] * params.repetition_penalty
            )
        logits[token] -= params.frequency_penalty * outputs.count(token)
        if token in outputs:
            logits[token] -= params.presence_penalty
        if token in params.logit_bias:
            logits[token] += params.logit_bias[token] if params.logit_bias[token] > -100 else -np.inf
        if len(outputs) < params.min_tokens and token in (*sequence.eos_token_ids, *params.stop_token_ids):
            logits[token] = -np.inf
        if params.allowed_token_ids and token not in params.allowed_token_ids:
            logits[token] = -np.inf
        if is_forbidden((*sequence.token_ids, token), params):
            logits[token] = -np.inf
    return logits


def is_forbidden(token_ids: tuple[int, ...], params: SamplingParams) -> bool:
    """Whether the last token ends a bad word, or an n-gram that occurs before it."""
    size = params.no_repeat_ngram_size
    if size:
        ngrams = [token_ids[start : start + size] for start in range(len(token_ids) - size + 1)]
        if ngrams and ngrams[-1] in ngrams[:-1]:
            return True
    return any(token_ids[-len(word) :] == word for word in params.bad_words_ids)


def probabilities(raw: np.ndarray, sequence: NewSequence) -> np.ndarray:
    """Return the distribution [V] of the next token; for a greedy request it has one token."""
    params, logits = sequence.params, processed_logits(raw, sequence)
    if params.greedy:
        return np.eye(len(raw))[int(np.argmax(logits))]
    logits = logits / params.temperature
    if 0 < params.top_k < len(raw):
        logits = np.where(logits >= np.sort(logits)[-params.top_k], logits, -np.inf)
    if params.top_p < 1:
        probs, is_kept, mass = _softmax(logits), np.zeros(len(raw), bool), 0.0
        for token in sorted(range(len(raw)), key=lambda token: (-logits[token], token)):
            if mass >= params.top_p:
                break
            is_kept[token], mass = True, mass + probs[token]
        logits = np.where(is_kept, logits, -np.inf)
    probs = _softmax(logits)
    probs = np.where(probs < params.min_p * probs.max(), 0.0, probs)
    return cut_by_entropy(probs / probs.sum(), params)


def cut_by_entropy(probs: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Apply typical_p, epsilon_cutoff and eta_cutoff to a distribution [V], one after another."""

    def entropy() -> float:
        return -sum(probability * math.log(probability) for probability in probs if probability > 0)

    if params.typical_p < 1:
        mean = entropy()
        deviations = {
            token: abs(-math.log(probability) - mean) for token, probability in enumerate(probs) if probability > 0
        }
        mass, limit = 0.0, 0.0
        for token in sorted(deviations, key=lambda token: (deviations[token], token)):
            if mass >= params.typical_p:
                break
            mass, limit = mass + probs[token], deviations[token]
        probs = np.array(
            [
                probability if deviations.get(token, math.inf) <= limit else 0.0
                for token, probability in enumerate(probs)
            ]
        )
        probs = probs / probs.sum()
    for bound in ("epsilon_cutoff", "eta_cutoff"):
        cutoff = getattr(params, bound)
        if not cutoff:
            continue
        if bound == "eta_cutoff":
            cutoff = min(cutoff, math.sqrt(cutoff) * math.exp(-entropy()))
        probs = np.where((probs < cutoff) & (probs < probs.max()), 0.0, probs)
        probs = probs / probs.sum()
    return probs


def token_of(probs: np.ndarray, value: float) -> int:
    """Return the first token, by id, whose running sum exceeds the number."""
    return int(np.searchsorted(np.cumsum(probs), value, side="right"))


def token_by_model(raw: np.ndarray, sequence: NewSequence) -> int:
    """Return the token that is sampled with the request's seed, choice index and position."""
    row = [
        np.array([part], np.int64) for part in (sequence.params.seed, sequence.choice_index, sequence.num_output_tokens)
    ]
    return token_of(probabilities(raw, sequence), float(uniforms(*row)[0]))


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def logits_of(rows: int, seed: int = 0, vocab_size: int = VOCAB, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    new_sequence = torch.randn(rows, vocab_size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2
    return new_sequence.to(dtype)


def sampler_with(sequences: list[NewSequence], vocab_size: int = VOCAB) -> Sampler:
    sampler = Sampler(len(sequences), vocab_size)
    for sequence in sequences:
        sampler.add_sequence(sequence)
    return sampler


def random_params(rng: np.random.Generator) -> SamplingParams:
    def maybe(value: object, neutral: object) -> object:
        return value if rng.random() < 0.4 else neutral

    return params(
        seed=int(rng.integers(-(2**62), 2**62)), temperature=maybe(0.0, rng.uniform(0.3, 2)),
        top_k=maybe(int(rng.integers(1, 60)), 0), top_p=maybe(rng.uniform(0.05, 1), 1.0),
        min_p=maybe(rng.uniform(0, 0.3), 0.0), repetition_penalty=maybe(rng.uniform(0.5, 2), 1.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0), frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        logit_bias=maybe({int(token): float(rng.choice([-100, -1.5, 2])) for token in rng.integers(0, VOCAB, 4)}, {}),
        typical_p=maybe(rng.uniform(0.2, 1), 1.0), epsilon_cutoff=maybe(rng.uniform(0, 0.1), 0.0),
        eta_cutoff=maybe(rng.uniform(0, 0.3), 0.0), no_repeat_ngram_size=maybe(int(rng.integers(1, 4)), 0),
        bad_words_ids=maybe(tuple(tuple(word) for word in rng.integers(0, VOCAB, (6, 2)).tolist()), ()),
        allowed_token_ids=maybe(tuple(range(int(rng.integers(10)), VOCAB)), ()),
        min_tokens=maybe(int(rng.integers(0, 6)), 0), stop_token_ids=maybe((8,), ()), logprobs=maybe(3, None),
    )  # fmt: skip


def random_sequences(count: int, seed: int) -> list[NewSequence]:
    rng = np.random.default_rng(seed)
    new_sequence = []
    for slot in range(count):
        prompt, outputs = (tuple(rng.integers(0, VOCAB, size).tolist()) for size in rng.integers(1, 12, 2))
        new_sequence.append(sequence(slot, random_params(rng), prompt, outputs if rng.random() < 0.7 else ()))
    return new_sequence
