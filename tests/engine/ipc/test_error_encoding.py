"""Errors and numbers as msgpack has them: code, message and details of an error come back as its own class."""

import msgspec
import numpy as np
import pytest

from chairlift.core.errors import ConfigError, error_from_wire
from chairlift.engine.ipc.error_encoding import encode_value, error_fields


def test_an_error_comes_back_as_its_own_class() -> None:
    error = ConfigError("too small: \ud800", option="num_blocks", least=np.int64(3), most=2**70)
    fields = error_fields(error)
    again = error_from_wire(*msgspec.msgpack.decode(msgspec.msgpack.encode(fields)))
    assert type(again) is ConfigError and again.message == "too small: ?"
    assert again.details == {"option": "num_blocks", "least": 3, "most": str(2**70)}
    assert encode_value(error) == fields


def test_numbers_of_numpy_are_plain_numbers() -> None:
    whole, real = encode_value(np.int32(7)), encode_value(np.float32(0.5))
    assert (whole, type(whole)) == (7, int) and (real, type(real)) == (0.5, float)


def test_anything_else_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="object cannot be sent to another process"):
        encode_value(object())
