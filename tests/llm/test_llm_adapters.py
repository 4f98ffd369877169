"""LLM with LoRARequests: each prompt runs with its own adapter, and nothing stays leased."""

from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.llm.llm import LLM
from chairlift.lora.request import LoRARequest
from support_adapter_versions import write_adapter
from support_services import fake_service

PARAMS = SamplingParams(max_tokens=8, temperature=0.0)


def test_each_prompt_runs_with_its_own_adapter(tmp_path: Path) -> None:
    service = fake_service()
    store = service.adapters
    assert store is not None
    a, b = (
        LoRARequest(name, number, str(write_adapter(tmp_path / name, [name.encode()])))
        for number, name in enumerate("ab", 1)
    )
    with LLM.from_service(service) as llm:
        outputs = llm.generate(["same"] * 3, PARAMS, lora_request=[a, None, b], use_tqdm=False)
        texts = [output.outputs[0].text for output in outputs]
        assert len(set(texts)) == 3
        assert llm.generate("same", PARAMS, lora_request=a, use_tqdm=False)[0].outputs[0].text == texts[0]
        assert llm.generate("same", PARAMS, use_tqdm=False)[0].outputs[0].text == texts[1]
        messages = [{"role": "user", "content": "x"}]
        chats = [llm.chat(messages, PARAMS, lora_request=each, use_tqdm=False)[0] for each in (a, None)]
        assert chats[0].outputs[0].text != chats[1].outputs[0].text
        write_adapter(tmp_path / "a", [b"changed"])
        again = llm.generate("same", PARAMS, lora_request=replace(a, load_inplace=True), use_tqdm=False)
        assert again[0].outputs[0].text != texts[0]
        with pytest.raises(InvalidRequest, match="prompts"):
            llm.generate(["x", [99999]], PARAMS, lora_request=a, use_tqdm=False)
        assert [state.running for state in store.states()] == [0, 0]


def test_bad_lora_requests_are_refused_before_anything_runs(tmp_path: Path) -> None:
    service = fake_service()
    with LLM.from_service(service) as llm:
        with pytest.raises(InvalidRequest, match="one entry per prompt"):
            llm.generate(["a", "b"], PARAMS, lora_request=[None], use_tqdm=False)
        with pytest.raises(InvalidRequest, match="must have LoRARequests"):
            llm.generate(["a"], PARAMS, lora_request=["a"], use_tqdm=False)  # type: ignore[list-item]
        with pytest.raises(InvalidRequest, match="has no files"):
            llm.generate("a", PARAMS, lora_request=LoRARequest("a", 1, str(tmp_path)), use_tqdm=False)
        without = LLM.from_service(replace(service, adapters=None))
        with pytest.raises(ConfigError, match="no LoRA adapters"):
            without.generate("a", PARAMS, lora_request=LoRARequest("a", 1, "p"), use_tqdm=False)
