"""LogitProcessorListView: lists the parameters that change the logits; clear() drops them and nothing else."""

from typing import Any

import pytest

from chairlift.llm.transformers_compat.logit_processor_list_view import LogitProcessorListView
from chairlift.llm.transformers_compat.settings import ManagerSettings, request_params, resolve_settings


class Holder:
    def __init__(self, **fields: Any) -> None:
        self.settings: ManagerSettings = resolve_settings(fields)


@pytest.mark.parametrize(("fields", "names"), [
    ({}, []),
    ({"do_sample": True}, []),
    ({"top_k": 50, "temperature": 1.0, "do_sample": True}, ["top_k"]),
    ({"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "do_sample": True},
     ["repetition_penalty", "temperature", "top_p"]),
    ({"repetition_penalty": 1.1, "no_repeat_ngram_size": 2, "bad_words_ids": [[5]]},
     ["bad_words_ids", "no_repeat_ngram_size", "repetition_penalty"]),
])  # fmt: skip
def test_parameters_that_change_the_logits_are_dropped(fields: dict[str, Any], names: list[str]) -> None:
    holder = Holder(max_new_tokens=7, **fields)
    processors = LogitProcessorListView(holder)
    assert sorted(processors) == names and len(processors) == len(names)
    processors.clear()
    assert list(processors) == [] and holder.settings.max_new_tokens == 7
    params = request_params(holder.settings)[0].with_defaults({}, max_tokens=1, seed=0)
    assert params.temperature == (1.0 if fields.get("do_sample") else 0.0)
    assert (params.top_k, params.top_p, params.repetition_penalty, params.no_repeat_ngram_size) == (0, 1.0, 1.0, 0)
    assert params.bad_words_ids == ()
