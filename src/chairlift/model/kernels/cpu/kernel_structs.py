"""Weight, Step, Plan, LMHeadCall, ExpertsCall and others: the structs of the native kernels' C interface.

They have the fields of the C++ headers in the same order. A test compares their sizes with the library's.
"""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_void_p


class Weight(ctypes.Structure):
    """kernels.h: Weight."""

    _fields_ = (
        ("outputs", c_int32), ("inputs", c_int32), ("panels", c_int32), ("steps", c_int32), ("kind", c_int32),
        ("data", c_void_p), ("scales", c_void_p), ("group_scales", c_void_p), ("group_minima", c_void_p),
        ("small_scales", c_void_p), ("small_minima", c_void_p),
    )  # fmt: skip


class StepGroup(ctypes.Structure):
    """step.h: StepGroup."""

    _fields_ = (("block_table", c_void_p), ("max_blocks", c_int32), ("slot_mapping", c_void_p))


class StepCache(ctypes.Structure):
    """step.h: StepCache."""

    _fields_ = (("keys", c_void_p), ("values", c_void_p))


class StepState(ctypes.Structure):
    """step.h: StepState."""

    _fields_ = (("convolution", c_void_p), ("recurrent", c_void_p))


class StateSaveStruct(ctypes.Structure):
    """kernels.h: StateSaveStruct."""

    _fields_ = (("row", c_int32), ("num_tokens", c_int32), ("entry", c_int32))


class Step(ctypes.Structure):
    """step.h: Step."""

    _fields_ = (
        ("num_tokens", c_int32), ("num_seqs", c_int32), ("ids", c_void_p), ("positions", c_void_p),
        ("cu_seqlens_q", c_void_p), ("seq_lens", c_void_p), ("groups", POINTER(StepGroup)),
        ("caches", POINTER(StepCache)),
        ("slots", c_void_p), ("saves", c_void_p), ("num_saves", c_int32), ("states", POINTER(StepState)),
    )  # fmt: skip


class Plan(ctypes.Structure):
    """step.h: Plan."""

    _fields_ = (
        ("num_rows", c_int32), ("num_tokens", c_int32), ("num_samples", c_int32), ("packed_inputs", c_void_p),
        ("last_sampled", c_void_p), ("block_tables", c_void_p),
        ("num_groups", c_int32), ("num_slots", c_int32), ("max_blocks", c_int32), ("block_size", c_int32),
        ("vocab_size", c_int32), ("writes_kv", c_int32), ("caches", POINTER(StepCache)), ("invalid_token", c_int32),
        ("saves", c_void_p), ("num_saves", c_int32), ("num_entries", c_int32), ("states", POINTER(StepState)),
    )  # fmt: skip


class RecurrenceShape(ctypes.Structure):
    """kernels.h: RecurrenceShape."""

    _fields_ = (
        ("kind", c_int32), ("num_key_heads", c_int32), ("num_heads", c_int32), ("key_dim", c_int32),
        ("value_dim", c_int32), ("query_column", c_int32), ("key_column", c_int32), ("value_column", c_int32),
        ("decay_column", c_int32), ("beta_column", c_int32), ("decay_rates", c_void_p), ("dt_bias", c_void_p),
        ("skips", c_void_p), ("min_dt", c_float), ("max_dt", c_float),
    )  # fmt: skip


class LogitsRow(ctypes.Structure):
    """kernels.h: LogitsRow."""

    _fields_ = (("logits", c_void_p), ("bitmask", c_void_p))


class LMHeadCall(ctypes.Structure):
    """decoder.h: LMHeadCall."""

    _fields_ = (
        ("weight", POINTER(Weight)), ("rows", c_void_p), ("mask_words", c_int32), ("values", c_void_p),
        ("ids", c_void_p),
    )  # fmt: skip


class RouterSettings(ctypes.Structure):
    """expert_plan.h: RouterSettings."""

    _fields_ = (
        ("num_experts", c_int32), ("experts_per_row", c_int32), ("scoring", c_int32), ("renormalizes", c_int32),
        ("sum_offset", c_float), ("scaling_factor", c_float), ("num_groups", c_int32), ("groups_per_row", c_int32),
        ("correction_bias", c_void_p), ("expert_scales", c_void_p),
    )  # fmt: skip


class ExpertsCall(ctypes.Structure):
    """experts.h: ExpertsCall."""

    _fields_ = (
        ("in_", c_int32), ("gathered", c_int32), ("gated", c_int32), ("quantized", c_int32), ("outputs", c_int32),
        ("shared", c_int32), ("gates", c_int32), ("gate_column", c_int32), ("out", c_int32), ("adds", c_int32),
        ("factor", c_float), ("activation", c_int32), ("gate_up", POINTER(POINTER(Weight))),
        ("down", POINTER(POINTER(Weight))), ("gate_up_biases", c_void_p), ("down_biases", c_void_p),
    )  # fmt: skip


class TruncationStruct(ctypes.Structure):
    """sampling.h: TruncationParams."""

    _fields_ = (
        ("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("uniform", c_double), ("top_k", c_int64),
    )  # fmt: skip
