"""ThreadCheckedAttention: every call reaches the other backend, and each layer checks the threads."""

from typing import Any
from unittest.mock import Mock

import torch

from chairlift.model.attention.thread_count_check import ThreadCheckedAttention


def test_every_call_reaches_the_inner_backend_and_attend_checks_the_threads() -> None:
    inner, threads = Mock(has_plain_kv=True, supports_cuda_graph=False), Mock()
    backend: Any = ThreadCheckedAttention(inner, threads)
    assert (backend.has_plain_kv, backend.supports_cuda_graph) == (True, False)
    calls = {
        "allocate_kv_cache": (2, 3, 16, 1, 8, torch.float32, torch.device("cpu")), "plan": ("batch",),
        "write_kv": ("key", "value", "kv", "slots"), "copy_blocks": (["kv"], "pairs"),
        "attend": ("query", "kv", "batch", "spec", "plan", "out"),
    }  # fmt: skip
    for name, arguments in calls.items():
        assert threads.check_in_step.call_count == 0
        result = getattr(backend, name)(*arguments)
        assert result is (getattr(inner, name).return_value if name in ("allocate_kv_cache", "plan") else None)
        getattr(inner, name).assert_called_once_with(*arguments)
    threads.check_in_step.assert_called_once_with()
