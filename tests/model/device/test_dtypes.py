"""Each dtype has one name, one torch dtype and one size; other names raise an error that lists the known ones."""

import pytest
import torch

from chairlift.core.errors import ConfigError, ModelError
from chairlift.model.device.dtypes import (
    DTYPE_ALIASES,
    DTYPES,
    SAFETENSORS_DTYPES,
    canonical_dtype,
    check_dtype,
    check_kv_cache_dtype,
    dtype_bytes,
    kv_cache_dtype_bytes,
    parse_dtype,
    resolve_dtype,
    torch_dtype,
)


@pytest.mark.parametrize("name", DTYPES)
def test_name_and_size_are_those_of_torch(name: str) -> None:
    dtype = torch_dtype(name)
    assert str(dtype) == f"torch.{name}"
    assert dtype_bytes(name) == dtype.itemsize


def test_safetensors_names_map_to_every_dtype() -> None:
    assert tuple(SAFETENSORS_DTYPES.values()) == DTYPES


@pytest.mark.parametrize("name", ["int8", "", None])
def test_an_unknown_name_raises_an_error_with_the_known_names(name: str | None) -> None:
    for convert in (torch_dtype, dtype_bytes):
        with pytest.raises(ModelError, match=f"dtype {name!r} is unknown; known are float64, float32"):
            convert(name)


@pytest.mark.parametrize(
    ("value", "name"),
    [("bfloat16", "bfloat16"), ("torch.float16", "float16"), ("float8_e4m3fn", None), (16, None), (None, None)],
)
def test_a_dtype_of_config_json_is_parsed(value: object, name: str | None) -> None:
    assert parse_dtype(value) == name


def test_auto_is_the_stored_dtype_else_the_default() -> None:
    assert resolve_dtype("float16", "bfloat16") == "float16"
    assert resolve_dtype("auto", "bfloat16") == "bfloat16"
    assert resolve_dtype("auto", None) == "float32"


def test_an_alias_is_the_dtype_that_torch_means_by_it() -> None:
    assert {"half", "fp16", "bf16", "float", "fp32"} <= DTYPE_ALIASES.keys()
    for alias, name in DTYPE_ALIASES.items():
        assert canonical_dtype(alias) == name and name in DTYPES
        check_dtype(canonical_dtype(alias))
        assert getattr(torch, alias, torch_dtype(name)) == torch_dtype(name)
    assert [canonical_dtype(name) for name in ("auto", "fp16x")] == ["auto", "fp16x"]
    check_dtype("auto")
    with pytest.raises(ConfigError, match=r"dtype 'fp16x' is unknown; known are auto, .* and the aliases double"):
        check_dtype("fp16x")


def test_the_kv_cache_has_the_models_dtype_or_8_bits() -> None:
    for option in ("auto", "fp8", canonical_dtype("fp8_e4m3")):
        check_kv_cache_dtype(option)
    assert kv_cache_dtype_bytes("fp8", "float32") == 1
    assert [kv_cache_dtype_bytes("auto", name) for name in DTYPES] == [dtype_bytes(name) for name in DTYPES]
    for unknown in ("fp8_e5m2", "bfloat16", ""):
        with pytest.raises(ConfigError, match=f"'{unknown}' is unknown; known are auto, fp8, and the alias fp8_e4m3"):
            check_kv_cache_dtype(unknown)
