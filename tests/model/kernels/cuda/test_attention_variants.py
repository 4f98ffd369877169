"""variants: every head size, block size and kind of layer; test_compile_check compiles them."""

from itertools import product

from chairlift.model.kernels.cuda.attention_kernels import decode_kernel, extend_kernel, write_kv_kernel
from chairlift.model.kernels.cuda.attention_variants import BLOCK_SIZES, HEAD_DIMS, variants


def test_decode_and_extend_are_compiled_for_every_size_with_and_without_features() -> None:
    for kernel in (decode_kernel, extend_kernel):
        found = {
            (each.constants["HEAD_DIM"], each.constants["BLOCK_SIZE"], each.constants[feature], feature)
            for each in variants()
            if each.kernel is kernel
            for feature in ("HAS_WINDOW", "HAS_CAP", "HAS_SINKS")
        }
        assert found == set(product(HEAD_DIMS, BLOCK_SIZES, (False, True), ("HAS_WINDOW", "HAS_CAP", "HAS_SINKS")))


def test_extend_variants_need_tensor_cores_and_names_are_unique() -> None:
    every = variants()
    assert len({each.name for each in every}) == len(every)
    assert all(each.needs_tensor_cores == (each.kernel is extend_kernel) for each in every)


def test_kernels_of_the_cache_are_compiled_for_8_bit_floats_where_gpus_have_them() -> None:
    float8 = [each for each in variants() if each.signature.get("key_cache") == "*fp8e4nv"]
    found = {(each.kernel, each.constants["HEAD_DIM"]) for each in float8}
    assert found == set(product((decode_kernel, extend_kernel, write_kv_kernel), HEAD_DIMS))
    assert {each.constants["HAS_CAP"] for each in float8 if each.kernel is extend_kernel} == {False, True}
    assert all((each.min_capability == 89) == (each in float8) for each in variants())


def test_a_signature_names_every_parameter_of_its_kernel() -> None:
    for each in variants():
        assert set(each.signature) == set(each.kernel.arg_names), each.name
