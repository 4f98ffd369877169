"""DecodeGraphs: CUDA graphs of decode steps, by buckets of batch size and length.

    bucket (rows, length) ─► graph over static inputs: embedding, layers, lm_head, sampler of rows that need no more

A step of fewer rows is padded with rows that have no tokens. A graph has the launches of its capture, and with them the
longest sequence that it serves: the splits of the keys depend on it. The inputs of all graphs share their memory.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor

from chairlift.engine.step_plan import Int32, StepPlan
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.batch.input_batch import StepInputs
from chairlift.model.device.device_errors import is_out_of_memory
from chairlift.model.device.device_stream import DeviceStream, Graph
from chairlift.model.runner.device_input_batch import DeviceInputBatch, InputTensors

log = logging.getLogger(__name__)

FIRST_LENGTH, LENGTH_FACTOR = 2048, 4
"""Tokens of the longest sequence in the smallest bucket, and the ratio of one bucket to the next."""

Bucket = tuple[int, int]
ComputeStep = Callable[[StepInputs, Tensor], tuple[Tensor, Tensor]]
"""Computes hidden states and logits of a step's inputs, and samples for slots int32 [S]."""


def batch_sizes(max_rows: int) -> list[int]:
    """Return the numbers of rows that have graphs: 1, 2, 4, then multiples of 8, above 256 of 32; the last max_rows."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(288, max_rows + 1, 32)]
    return [size for size in sizes if size < max_rows] + [max_rows]


def length_sizes(max_model_len: int) -> list[int]:
    """Return the lengths of sequences that have graphs, in tokens; the last is max_model_len."""
    sizes, length = [], FIRST_LENGTH
    while length < max_model_len:
        sizes.append(length)
        length *= LENGTH_FACTOR
    return [*sizes, max_model_len]


class StepOutputs:
    """Hidden states and logits of the rows of a step, where every graph copies its own.

    A tensor that a capture leaves alive would keep its place in the memory of all graphs: the logits of every bucket.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._tensors: list[Tensor] = []

    def store(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Copy tensors [S, width] to the memory of all steps; the first call allocates it, outside of a capture."""
        if not self._tensors:
            self._tensors = [each.new_empty(self._max_rows, each.shape[1]) for each in outputs]
        return tuple(kept[: len(each)].copy_(each) for kept, each in zip(self._tensors, outputs, strict=True))


class DecodeGraphs:
    """Captures the graph of a bucket when a step first needs it, and fills its inputs.

    Owns: the graphs, their inputs and outputs. Does not own: the tables from which the inputs are made.
    """

    def __init__(
        self, compute: ComputeStep, tables: DeviceInputBatch, stream: DeviceStream, *, max_rows: int,
        max_model_len: int, block_size: int, device: torch.device, is_required: bool, is_sharded: bool = False,
    ) -> None:  # fmt: skip
        """Allocate the inputs of the largest bucket; with `is_required` a capture that fails at the start raises.

        With `is_sharded` a capture that finds too little memory raises, too: without padding the collectives of this
        rank would have other sizes than those of the other ranks, which replay the graph.
        `compute` must not refer to these graphs: a cycle would keep the memory of a runner that has stopped.
        """
        self._compute, self._tables, self._stream = compute, tables, stream
        self._rows, self._lengths = batch_sizes(max_rows), length_sizes(max_model_len)
        groups, columns = len(tables.tables), -(-max_model_len // block_size)
        self._inputs = InputTensors.empty(groups, max_rows, max_rows, columns, device)
        self._all_rows = torch.arange(max_rows, dtype=torch.int32, device=device)
        self._outputs = StepOutputs(max_rows)
        self._graphs: dict[Bucket, Graph] = {}
        self._too_large: set[Bucket] = set()
        self._is_required, self._is_sharded = is_required, is_sharded
        self._has_failed = False

    def bucket_of(self, plan: StepPlan) -> Bucket | None:
        """Return the bucket of a step; None for one that has longer rows or too many, and once a capture has failed."""
        if self._has_failed or plan.num_tokens != plan.num_rows or not 0 < plan.num_rows <= self._rows[-1]:
            return None
        # Each row has one token, so the longest sequence ends with it.
        longest = int(plan.start_positions.max()) + 1
        if longest > self._lengths[-1]:
            return None
        return self._rows[bisect_left(self._rows, plan.num_rows)], self._lengths[bisect_left(self._lengths, longest)]

    def capture(self, bucket: Bucket, *, at_start: bool = False) -> bool:
        """Capture a bucket that has no graph yet; returns whether it has one now.

        Steps of a bucket whose capture finds too little memory have no graph; on a rank of several its error is raised.
        Another capture that fails turns all graphs off. At the start it raises its RuntimeError where graphs are
        required; no request is there to fail.
        """
        if bucket in self._graphs:
            return True
        if bucket in self._too_large:
            return False
        rows, length = bucket
        inputs = self._inputs.first(rows)
        batch = ForwardBatch(
            num_seqs=rows, num_tokens=rows, num_decodes=rows, max_seqlen_q=1, max_seqlen_k=length,
            positions=inputs.positions, cu_seqlens_q=inputs.cu_seqlens, seq_lens=inputs.seq_lens,
            logits_indices=self._all_rows[:rows], groups=inputs.groups(), cu_q_list=(), seq_lens_list=(),
        )  # fmt: skip
        # The capture, and what warms it up, must not touch the cache of a running sequence.
        self._stream.run(inputs.make_padding)
        step, compute, outputs = StepInputs(inputs.input_ids, batch), self._compute, self._outputs
        try:
            self._graphs[bucket] = self._stream.capture(lambda: outputs.store(compute(step, inputs.sample_slots)))
        except RuntimeError as error:
            if is_out_of_memory(error):
                if self._is_sharded:
                    raise
                log.warning("too little memory for the CUDA graph of %d rows of %d tokens: %s", rows, length, error)
                # Its steps run without a graph; trying again in each of them would cost more than it brings.
                self._too_large.add(bucket)
                return False
            if at_start and self._is_required:
                raise
            log.warning("CUDA graphs are off: the capture of %d rows failed: %s", rows, error)
            self._has_failed = True
            # Their memory serves no other step, and none of them will be used.
            self._graphs.clear()
            return False
        return True

    def capture_smallest(self) -> None:
        """Capture the graph of one row, which tells whether graphs work here."""
        self.capture((self._rows[0], self._lengths[0]), at_start=True)

    def capture_first(self) -> None:
        """Capture every number of rows for the shortest sequences, the largest first: it needs the most memory."""
        for rows in reversed(self._rows):
            self.capture((rows, self._lengths[0]), at_start=True)
            if self._has_failed:
                return

    def launch(self, plan: StepPlan, bucket: Bucket, sample_slots: Int32) -> tuple[Tensor, Tensor]:
        """Run the graph of a captured bucket for a plan that was applied to the tables.

        Args:
            plan: a step whose bucket it is.
            bucket: see bucket_of.
            sample_slots: int32 [S], the slot whose token the graph samples from each row; -1 for none.

        Returns:
            hidden states and logits of the bucket's rows, valid until the next launch.
        """
        inputs, graph = self._inputs.first(bucket[0]), self._graphs[bucket]
        self._tables.fill(plan, inputs, sample_slots)
        self._stream.run(graph.replay)
        hidden, logits = graph.outputs
        return hidden, logits
