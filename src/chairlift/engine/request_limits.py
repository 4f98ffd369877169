"""RequestLimits: what a request may ask of an engine with this configuration and runner."""

from dataclasses import dataclass

from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.layer_groups import LayerGroupLayout, peak_blocks
from chairlift.engine.runner.base import RunnerInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The limits that a request must meet.

    Attributes:
        vocab_size: token ids are below this.
        max_model_len: prompt and output tokens of one request.
        num_blocks: blocks in the pool.
        layouts: one LayerGroupLayout for each layer group.
        lookahead: tokens that may be scheduled beyond the confirmed ones.
        max_cached_tokens: the most tokens that one sequence alone can keep in the pool.
        logits_processors: names that a request may use.
        hidden_size: length of an embedding; 0 if the runner makes none.
    """

    vocab_size: int
    max_model_len: int
    num_blocks: int
    layouts: tuple[LayerGroupLayout, ...]
    lookahead: int
    max_cached_tokens: int
    logits_processors: tuple[str, ...] = ()
    hidden_size: int = 0

    @classmethod
    def from_config(cls, config: SchedulerConfig, info: RunnerInfo) -> "RequestLimits":
        """Combine the limits of the scheduler and of the runner."""
        max_model_len = min(config.max_model_len or info.max_model_len, info.max_model_len)
        layouts = tuple(LayerGroupLayout(window, info.block_size) for window in info.windows)
        lookahead = config.max_prefill_chunk * config.max_in_flight_steps
        low, high = 0, max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            fits = peak_blocks(layouts, middle, lookahead) <= info.num_blocks
            low, high = (middle, high) if fits else (low, middle - 1)
        if config.fits_length_to_cache:
            max_model_len = min(max_model_len, low + 1)  # the last token is never an input, so it needs no block
        return cls(
            vocab_size=info.vocab_size, max_model_len=max_model_len, num_blocks=info.num_blocks, layouts=layouts,
            lookahead=lookahead, max_cached_tokens=low, logits_processors=info.logits_processors,
            hidden_size=info.hidden_size,
        )  # fmt: skip

    def blocks_needed(self, num_tokens: int) -> int:
        """Return the most blocks that a sequence of num_tokens holds at once."""
        return peak_blocks(self.layouts, num_tokens, self.lookahead)

    def max_output_tokens(self, prompt_tokens: int) -> int:
        """Return the most output tokens after a prompt; below 1 when none fits.

        The last output token is never an input, so it needs no block.
        """
        return min(self.max_model_len, self.max_cached_tokens + 1) - prompt_tokens
