"""NativeDecoder: an architecture's decoder on the native kernels; runs its layers as a DecoderProgram."""

import numpy as np
import torch
from torch import Tensor

from chairlift.engine.step_plan import StepPlan
from chairlift.model.attention.base import PagedKV
from chairlift.model.backends.decoder_program import DecoderProgram
from chairlift.model.batch.input_batch import SlotBlockTables
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.layers.decoder import DecoderSpec
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest


class NativeDecoder:
    """A CausalLM (layers/causal_lm_protocol.py) on the native kernels.

    Attributes:
        groups, vocab_size, state_shapes: see CausalLM.
        dtype: of hidden states and KV cache: bfloat16 or float32.
    """

    def __init__(self, parts: DecoderSpec, pool: ThreadPool, instruction_set: str, dtype: torch.dtype) -> None:
        """Store the parts. Their matrices must be PackedWeights and their rope tables float32."""
        config = parts.config
        self.groups = config.layer_groups
        self.vocab_size = config.vocab_size
        self.state_shapes = config.state_shapes
        self.dtype = dtype
        self._parts = parts
        self._pool = pool
        self._instruction_set = instruction_set
        self._program: DecoderProgram | None = None

    def padded_size(self, num_tokens: int) -> int:
        """Return the same number: padding would not make the step faster."""
        return num_tokens

    def forward(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run input_ids [T] int64 at context.batch.positions through all layers.

        Returns hidden states [T, H] after the final norm, valid until the next call.
        """
        return self._program_of(context.kv).run(input_ids, context)

    def forward_plan(
        self, plan: StepPlan, tables: SlotBlockTables, kv: list[PagedKV], states: StateCache | None = None
    ) -> Tensor:
        """See TakesPlans."""
        return self._program_of(kv).run_plan(plan, tables, kv, states)

    def score_plan(
        self, plan: StepPlan, tables: SlotBlockTables, kv: list[PagedKV], request: LogitsRequest,
        states: StateCache | None = None,
    ) -> LMHeadOutput:  # fmt: skip
        """See TakesPlans."""
        return self._program_of(kv).score_plan(plan, tables, kv, request, states)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits float32 [R, V] from hidden states [R, H]."""
        return self.head(hidden, LogitsRequest(np.ones(len(hidden), bool))).logits

    def head(self, hidden: Tensor, request: LogitsRequest) -> LMHeadOutput:
        """See CausalLM; logits are float32, and those that are not requested are not stored."""
        assert self._program is not None, "logits before the first step"
        return self._program.score(hidden, request)

    def op_seconds(self) -> dict[str, float]:
        """Return the seconds of one thread by kind of operation since the last call."""
        return {} if self._program is None else self._program.op_seconds()

    def _program_of(self, kv: list[PagedKV]) -> DecoderProgram:
        sizes = kv[0].key.shape[1], kv[0].key.stride(0)
        if self._program is None or (self._program.block_size, self._program.block_elements) != sizes:
            self._program = DecoderProgram(self._parts, self._pool, self._instruction_set, self.dtype, *sizes)
        return self._program
