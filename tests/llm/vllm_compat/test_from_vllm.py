"""docs/from-vllm.md: every row of its tables holds; a row without a check, or a check without a row, fails."""

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

import chairlift
from chairlift import LLM, AsyncLLM, LoRARequest, SamplingParams, StructuredOutputsParams
from chairlift.core.errors import ContextLengthExceeded, InvalidRequest, NonFiniteLogits, UnknownOption
from chairlift.core.foreign_options import OptionEffect
from chairlift.core.sampling_params import MAX_CHOICES, MAX_LOGPROBS
from chairlift.llm.build import prepare
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.vllm_compat.model_tokenizer import ModelTokenizer
from chairlift.llm.vllm_compat.vllm_options import VLLM_OPTIONS
from support_async_llm import LONG, SLOW_ENGINE
from support_doc_tables import table
from support_forks import TORCH_MODULES, run_process
from support_grammars import grammar_of
from support_json_schema import accepts
from support_services import FAKE, fake_service, is_idle
from support_source_tree import ROOT

PAGE = (ROOT / "docs" / "from-vllm.md").read_text(encoding="utf-8")
SHORT = SamplingParams(max_tokens=4, seed=1)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_service(fake_service(defaults=ModelDefaults(sampling={"temperature": 0.5}))) as llm:
        yield llm


def check_imports(llm: LLM) -> None:
    names = re.findall(r"`(\w+)`", PAGE.partition("has are")[2].partition("```")[0])
    assert len(names) == 11 and all(getattr(chairlift, name) for name in names)
    with pytest.raises(ModuleNotFoundError):
        __import__("chairlift.sampling_params")


def check_no_model(llm: LLM) -> None:
    assert prepare(None, {}, starts=False).model == "chairlift:demo"


def check_seed(llm: LLM) -> None:
    def seeds(**options: Any) -> list[int]:
        drawn = prepare("chairlift:random", options, starts=False).seeds  # type: ignore[arg-type]
        return [drawn.getrandbits(63) for _ in range(2)]

    assert seeds(seed=0) == seeds(seed=0) and seeds() != seeds()
    assert llm.generate("x", SHORT, use_tqdm=False)[0].outputs[0].seed == 1


def check_unknown_option(llm: LLM) -> None:
    with pytest.raises(TypeError, match="did you mean 'dtype'") as caught:
        LLM(dtyp="auto")
    assert type(caught.value) is UnknownOption


def check_no_close(llm: LLM) -> None:
    script = (
        "from chairlift import LLM\nllm = LLM('chairlift:random', num_blocks=40, max_model_len=64, dtype='float32')"
    )
    script += "\nprint(len(llm.generate([5, 6], use_tqdm=False)[0].outputs[0].token_ids))"
    done = run_process([sys.executable, "-c", script], modules=TORCH_MODULES, text=True)
    assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr


def check_frozen(llm: LLM) -> None:
    params = SamplingParams()
    with pytest.raises(FrozenInstanceError):
        params.max_tokens = 5  # type: ignore[misc]
    assert replace(params, max_tokens=5).max_tokens == 5


def check_none_is_the_models(llm: LLM) -> None:
    for temperature, expected in ((None, 0.5), (1.0, 1.0)):
        params = SamplingParams(temperature=temperature)
        assert llm._service.prepare_completion("x", params).request.params.temperature == expected
    for name in ("top_p", "top_k", "min_p", "repetition_penalty"):
        assert getattr(SamplingParams(**{name: None}), name) is None


def check_bounds(llm: LLM) -> None:
    assert (MAX_CHOICES, MAX_LOGPROBS) == (128, 20)
    for fields in ({"temperature": 2.1}, {"repetition_penalty": 10.1}, {"n": 129}, {"logprobs": 21}):
        with pytest.raises(InvalidRequest):
            SamplingParams(**fields)


def check_all_logprobs(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="logprobs must be between 0 and 20, got -1"):
        SamplingParams(logprobs=-1)


def check_logits_processors(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="logits_processors must contain strings, got function"):
        SamplingParams(logits_processors=[check_frozen])  # type: ignore[arg-type]


def check_best_of(llm: LLM) -> None:
    (result,) = llm.generate("x", replace(SHORT, best_of=4), use_tqdm=False)
    assert len(result.outputs) == 1 and result.usage.completion_tokens == 16


def refused(name: str) -> Callable[[LLM], None]:
    def check(llm: LLM) -> None:
        with pytest.raises(TypeError, match=f"SamplingParams has no {name}"):
            SamplingParams(**{name: True})

    return check


def check_additional_properties(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for value in (False, True):
        params = StructuredOutputsParams(json=schema, disable_additional_properties=value)
        grammar = grammar_of(json_schema=params.to_structured_output().json_schema)
        assert accepts(grammar, {"a": 1}) and not accepts(grammar, {"a": 1, "b": 1})
    assert accepts(grammar_of(json_schema={**schema, "additionalProperties": True}), {"a": 1, "b": 1})


def check_context(llm: LLM) -> None:
    with pytest.raises(ContextLengthExceeded, match="500 tokens and max_tokens is 16, the limit of their sum is 512"):
        llm.generate("x" * 500, SamplingParams())
    (result,) = llm.generate("x" * 500, SamplingParams(max_tokens=None), use_tqdm=False)
    assert len(result.outputs[0].token_ids) == 12


def check_invalid(llm: LLM) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(["fine", ""], use_tqdm=False)
    assert not isinstance(caught.value, ValueError) and is_idle(llm._service)
    assert llm.scheduler_state()["steps"] == 0


def check_failure(llm: LLM) -> None:
    with LLM.from_service(fake_service(replace(FAKE, nan=ord("!")))) as faulty:
        good, bad = faulty.generate(["x", "!"], SHORT, use_tqdm=False)
    assert type(bad.error) is NonFiniteLogits and bad.outputs[0].finish_reason == "error"
    assert good.error is None and len(good.outputs[0].token_ids) == 4


def check_multi_modal(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="multi_modal_data"):
        llm.generate({"prompt": "x", "multi_modal_data": {"image": b""}}, use_tqdm=False)


def check_lora(llm: LLM) -> None:
    assert llm.generate("x", SHORT, lora_request=None)[0].error is None
    with pytest.raises(InvalidRequest, match="folder has no files of an adapter"):
        llm.generate("x", SHORT, lora_request=[LoRARequest("a", 1, "folder")])


def check_priority(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="priority must be an integer, got list"):
        llm.generate(["x", "y"], SHORT, priority=[1, 2])  # type: ignore[arg-type]


def check_missing_methods(llm: LLM) -> None:
    assert [name for name in ("encode", "classify", "beam_search") if hasattr(llm, name)] == []


def check_embed(llm: LLM) -> None:
    (output,) = llm.embed("x", use_tqdm=False)
    assert output.outputs.embedding is output.embedding and len(output.embedding) > 1
    assert llm.embed("x y", pooling="last", use_tqdm=False) != llm.embed("x y", pooling="mean", use_tqdm=False)


def check_score(llm: LLM) -> None:
    one, other = (output.embedding for output in llm.embed(["x", "y"], use_tqdm=False))
    cosine = sum(a * b for a, b in zip(one, other, strict=True))
    assert llm.score("x", "y", use_tqdm=False)[0].outputs.score == pytest.approx(cosine, abs=1e-5)


def check_rank(llm: LLM) -> None:
    (result,) = llm.generate("x", replace(SHORT, logprobs=0), use_tqdm=False)
    ((token, entry),) = (result.outputs[0].logprobs or [])[0].items()
    assert token == result.outputs[0].token_ids[0] and (entry.logprob, entry.rank) == (-1.0, None)


def check_metrics(llm: LLM) -> None:
    (result,) = llm.generate("x", SHORT, use_tqdm=False)
    assert not hasattr(result, "metrics") and result.timeline is not None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (1, 4)


def check_tokenizer(llm: LLM) -> None:
    assert type(llm.get_tokenizer()) is ModelTokenizer
    script = "import sys, chairlift.llm.vllm_compat.model_tokenizer\nassert 'transformers' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 0


def check_template_ids(llm: LLM) -> None:
    tokenizer, chat = llm.get_tokenizer(), [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(chat) == list(b"user=x;a=")
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "user=x;a="


def check_async_invalid(llm: LLM) -> None:
    with pytest.raises(InvalidRequest):
        AsyncLLM.from_service(llm._service).generate("")


def check_break(llm: LLM) -> None:
    service = fake_service(SLOW_ENGINE)

    async def scenario() -> int:
        stream = (held := AsyncLLM.from_service(service)).generate("x", LONG)
        async for _ in stream:
            break
        await asyncio.sleep(0)
        return (await held.scheduler_state())["finished_by_reason"]["abort"]

    assert asyncio.run(scenario()) == 1
    service.client.close()


def check_coroutines(llm: LLM) -> None:
    assert all(map(inspect.iscoroutinefunction, (AsyncLLM.get_tokenizer, AsyncLLM.abort)))


CHECKS: dict[str, Callable[[LLM], None]] = {
    "`from vllm.sampling_params import`": check_imports,
    "`LLM()`": check_no_model,
    "`LLM(seed=...)` left out": check_seed,
    "`LLM(unknown=1)`": check_unknown_option,
    "`llm.close()`": check_no_close,
    "`params.max_tokens = 5`": check_frozen,
    "`SamplingParams(temperature=None)`": check_none_is_the_models,
    "`SamplingParams(temperature=3)`": check_bounds,
    "`SamplingParams(logprobs=-1)`": check_all_logprobs,
    "`SamplingParams(logits_processors=[function])`": check_logits_processors,
    "`SamplingParams(best_of=4)`": check_best_of,
    "`SamplingParams(use_beam_search=True)`": refused("use_beam_search"),
    "`SamplingParams(guided_decoding=...)`": refused("guided_decoding"),
    "`StructuredOutputsParams(disable_additional_properties=...)`": check_additional_properties,
    "`SamplingParams(truncate_prompt_tokens=8)`": refused("truncate_prompt_tokens"),
    "prompt + `max_tokens` over the context": check_context,
    "an invalid request": check_invalid,
    "a request that fails while it runs": check_failure,
    '`{"prompt": ..., "multi_modal_data": ...}`': check_multi_modal,
    "`generate(..., lora_request=...)`": check_lora,
    "`generate(..., priority=[...])`": check_priority,
    "`llm.embed()`": check_embed,
    "`llm.score()`": check_score,
    "`llm.encode()`, `classify()`, `beam_search()`": check_missing_methods,
    "`logprobs[i][token].rank`": check_rank,
    "`output.metrics`": check_metrics,
    "`get_tokenizer()`": check_tokenizer,
    "`get_tokenizer().apply_chat_template(...)`": check_template_ids,
    "`AsyncLLM.generate(...)` with an invalid request": check_async_invalid,
    "`break` out of a held `AsyncLLM` stream": check_break,
    "`AsyncLLM.get_tokenizer()`, `abort()`": check_coroutines,
}


def test_every_difference_has_a_check_and_every_check_a_row() -> None:
    rows = table("from-vllm.md", "What differs")
    assert all(len(row) == 3 for row in rows)
    assert [row[0] for row in rows] == list(CHECKS)


@pytest.mark.share(16)
@pytest.mark.parametrize("row", CHECKS)
def test_what_the_row_says_holds(llm: LLM, row: str) -> None:
    CHECKS[row](llm)


def option_row(name: str) -> list[str]:
    """Return the row of an option as the page must have it."""
    option = VLLM_OPTIONS[name]
    if option.setting:
        return [f"`{name}`", f"`{option.setting}`" + (f": {option.reason}" if option.reason else "")]
    if option.effect is OptionEffect.NONE:
        return [f"`{name}`", f"no effect: {option.reason}"]
    values = f" ({', '.join(f'`{value!r}`' for value in option.neutral)})" if 0 < len(option.neutral) < 5 else ""
    return [f"`{name}`", f"refused{values}: {option.reason}"]


def test_the_page_has_every_option_of_vllm_and_its_meaning() -> None:
    assert table("from-vllm.md", "Options of the constructor") == [option_row(name) for name in VLLM_OPTIONS]
