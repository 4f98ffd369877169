"""variants: every head size, block size and kind of layer; test_compile_check compiles them."""

from itertools import product

from chairlift.model.kernels.cuda.attention_kernels import decode_kernel, extend_kernel, write_kv_kernel
from chairlift.model.kernels.cuda.attention_variants_to_compile import (
    BLOCK_SIZES,
    GROUP,
    HEAD_DIMS,
    LARGE_GROUP,
    LARGE_HEAD_DIM,
    variants,
)


def test_decode_and_extend_are_compiled_for_every_size_with_and_without_features() -> None:
    for kernel in (decode_kernel, extend_kernel):
        found = {
            (each.constants["HEAD_DIM"], each.constants["BLOCK_SIZE"], each.constants[feature], feature)
            for each in variants()
            if each.kernel is kernel and each.constants["HEAD_DIM"] != LARGE_HEAD_DIM
            for feature in ("HAS_WINDOW", "HAS_CAP", "HAS_SINKS")
        }
        assert found == set(product(HEAD_DIMS, BLOCK_SIZES, (False, True), ("HAS_WINDOW", "HAS_CAP", "HAS_SINKS")))


def test_extend_variants_in_16_bits_need_tensor_cores_and_names_are_unique() -> None:
    every = variants()
    assert len({each.name for each in every}) == len(every)
    for each in every:
        is_16_bits, is_large = each.signature.get("query") == "*bf16", each.constants["HEAD_DIM"] == LARGE_HEAD_DIM
        assert each.needs_tensor_cores == (each.kernel is extend_kernel and is_16_bits and not is_large)


def test_float32_large_heads_and_large_groups_are_compiled_too() -> None:
    for kernel in (decode_kernel, extend_kernel):
        found = {
            (each.signature["query"], each.constants["HEAD_DIM"], each.constants["GROUP"])
            for each in variants()
            if each.kernel is kernel
        }
        assert found >= {
            *product(("*bf16", "*fp32"), HEAD_DIMS, (GROUP, LARGE_GROUP)),
            ("*bf16", LARGE_HEAD_DIM, GROUP),
        }


def test_kernels_of_the_cache_are_compiled_for_8_bit_floats_where_gpus_have_them() -> None:
    float8 = [each for each in variants() if each.signature.get("key_cache") == "*fp8e4nv"]
    found = {(each.kernel, each.constants["HEAD_DIM"]) for each in float8}
    assert found == set(product((decode_kernel, extend_kernel, write_kv_kernel), HEAD_DIMS))
    assert {each.constants["HAS_CAP"] for each in float8 if each.kernel is extend_kernel} == {False, True}
    assert all((each.min_capability == 89) == (each in float8) for each in variants())


def test_a_signature_names_every_parameter_of_its_kernel() -> None:
    for each in variants():
        assert set(each.signature) == set(each.kernel.arg_names), each.name
