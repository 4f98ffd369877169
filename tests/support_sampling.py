"""A slow model of the sampler, in numpy and by the definitions, and short ways to make requests for tests."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from torch import Tensor

from chairlift.core.sampling import SamplingParams
from chairlift.engine.step_plan import NewSequence, TokenMasks
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest, compute_lm_head_output
from chairlift.model.sampling.philox import uniforms

EOS = (3, 5)


def params(**chosen: object) -> SamplingParams:
    """Make resolved parameters; what is not chosen is neutral."""
    return SamplingParams(**chosen).with_defaults({}, max_tokens=100, seed=0)


def sequence(
    slot: int, chosen: SamplingParams, prompt: tuple[int, ...] = (1, 2), outputs: tuple[int, ...] = (), **more: object
) -> NewSequence:
    """Make what a runner is told of a sequence."""
    made = NewSequence(slot, prompt + outputs, len(outputs), chosen, EOS)
    return replace(made, **more)


def head_of(logits: Tensor) -> Callable[[LogitsRequest], LMHeadOutput]:
    """Make a head whose logits [R, V] are known; they are left as they are."""
    return partial(compute_lm_head_output, logits.clone())


def masks_of(vocab_size: int, allowed: Mapping[int, set[int]]) -> TokenMasks:
    """Make masks by place among the sample rows."""
    bits = np.zeros((len(allowed), -(-vocab_size // 32) * 32), np.uint8)
    for row, tokens in enumerate(allowed.values()):
        bits[row, sorted(tokens)] = 1
    return TokenMasks(np.array(list(allowed), np.int32), np.packbits(bits, axis=1, bitorder="little").view(np.int32))


def shaped_logits(raw: np.ndarray, new: NewSequence) -> np.ndarray:
    """Move raw logits [V] by penalties, bias and bans, one token at a time; no processors, no masks."""
    p, logits = new.params, raw.astype(np.float64).copy()
    outputs = new.token_ids[len(new.token_ids) - new.num_output_tokens :] if new.num_output_tokens else ()
    for token in range(len(raw)):
        if token in new.token_ids:
            logits[token] = (
                logits[token] / p.repetition_penalty if logits[token] > 0 else logits[token] * p.repetition_penalty
            )
        logits[token] -= p.frequency_penalty * outputs.count(token)
        if token in outputs:
            logits[token] -= p.presence_penalty
        if token in p.logit_bias:
            logits[token] += p.logit_bias[token] if p.logit_bias[token] > -100 else -np.inf
        if len(outputs) < p.min_tokens and token in (*new.eos_token_ids, *p.stop_token_ids):
            logits[token] = -np.inf
        if p.allowed_token_ids and token not in p.allowed_token_ids:
            logits[token] = -np.inf
        if is_forbidden((*new.token_ids, token), p):
            logits[token] = -np.inf
    return logits


def is_forbidden(token_ids: tuple[int, ...], p: SamplingParams) -> bool:
    """Whether the last token ends a bad word, or a run of tokens that was there before."""
    size = p.no_repeat_ngram_size
    if size:
        runs = [token_ids[start : start + size] for start in range(len(token_ids) - size + 1)]
        if runs and runs[-1] in runs[:-1]:
            return True
    return any(token_ids[-len(word) :] == word for word in p.bad_words_ids)


def probabilities(raw: np.ndarray, new: NewSequence) -> np.ndarray:
    """Return the distribution [V] from which the next token is drawn; a greedy request's has one token."""
    p, logits = new.params, shaped_logits(raw, new)
    if p.greedy:
        return np.eye(len(raw))[int(np.argmax(logits))]
    logits = logits / p.temperature
    if 0 < p.top_k < len(raw):
        logits = np.where(logits >= np.sort(logits)[-p.top_k], logits, -np.inf)
    if p.top_p < 1:
        likely, kept, mass = _softmax(logits), np.zeros(len(raw), bool), 0.0
        for token in sorted(range(len(raw)), key=lambda token: (-logits[token], token)):
            if mass >= p.top_p:
                break
            kept[token], mass = True, mass + likely[token]
        logits = np.where(kept, logits, -np.inf)
    likely = _softmax(logits)
    likely = np.where(likely < p.min_p * likely.max(), 0.0, likely)
    return cut_by_entropy(likely / likely.sum(), p)


def cut_by_entropy(likely: np.ndarray, p: SamplingParams) -> np.ndarray:
    """Apply typical_p, epsilon_cutoff and eta_cutoff to a distribution [V], each to what the one before left."""

    def entropy() -> float:
        return -sum(share * math.log(share) for share in likely if share > 0)

    if p.typical_p < 1:
        mean = entropy()
        far = {token: abs(-math.log(share) - mean) for token, share in enumerate(likely) if share > 0}
        mass, limit = 0.0, 0.0
        for token in sorted(far, key=lambda token: (far[token], token)):
            if mass >= p.typical_p:
                break
            mass, limit = mass + likely[token], far[token]
        likely = np.array([share if far.get(token, math.inf) <= limit else 0.0 for token, share in enumerate(likely)])
        likely = likely / likely.sum()
    for bound in ("epsilon_cutoff", "eta_cutoff"):
        least = getattr(p, bound)
        if not least:
            continue
        if bound == "eta_cutoff":
            least = min(least, math.sqrt(least) * math.exp(-entropy()))
        likely = np.where((likely < least) & (likely < likely.max()), 0.0, likely)
        likely = likely / likely.sum()
    return likely


def token_of(likely: np.ndarray, number: float) -> int:
    """Return the first token, by id, whose running sum exceeds the number."""
    return int(np.searchsorted(np.cumsum(likely), number, side="right"))


def drawn_by_model(raw: np.ndarray, new: NewSequence) -> int:
    """Return the token that the request's own seed, choice and position give."""
    row = [np.array([part], np.int64) for part in (new.params.seed, new.choice_index, new.num_output_tokens)]
    return token_of(probabilities(raw, new), float(uniforms(*row)[0]))


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
