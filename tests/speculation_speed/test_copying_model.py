"""Copying models: what they output is the copy, in whole and with renamed tokens and jumps."""

from pathlib import Path
from random import Random

import pytest

from chairlift import LLM
from speculation_speed.copying_model import SHAPES, write_copying_model
from speculation_speed.tasks import SpecialTokens, check_copies, copy_params, edit_request, extract_request


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen3"])
def test_a_model_outputs_the_copies_of_the_tasks(name: str, tmp_path: Path) -> None:
    special = SpecialTokens.of(SHAPES[name].vocab_size)
    write_copying_model(name, tmp_path, special.targets, special.aliases)
    rng = Random(2)
    requests = [edit_request(rng, special, 150), extract_request(rng, special, 200), edit_request(rng, special, 90)]
    with LLM(str(tmp_path), dtype="bfloat16", num_blocks=100) as llm:
        params = [copy_params(request, 400) for request in requests]
        results = llm.generate([request.prompt for request in requests], params, use_tqdm=False)
    outputs = [result.outputs[0].token_ids for result in results]
    check_copies(requests, outputs)
    assert [len(output) for output in outputs] == [len(request.output) for request in requests]


def test_a_wrong_copy_is_found() -> None:
    request = edit_request(Random(1), SpecialTokens.of(512), 60)
    with pytest.raises(ValueError, match="request 0"):
        check_copies([request], [[*request.output[:5], request.prompt[0]]])


def test_an_edit_renames_and_an_extraction_jumps() -> None:
    special = SpecialTokens.of(49_152)
    edit, extraction = edit_request(Random(1), special), extract_request(Random(1), special)
    assert len(edit.prompt) == 1002 and len(set(edit.prompt)) == 1001
    changed = [place for place, token in enumerate(edit.output) if token != edit.prompt[place + 2]]
    assert len(changed) == 30 and all(edit.output[place] in special.names for place in changed)
    assert len(extraction.prompt) >= 1500 and len(extraction.output) > 300
    assert set(extraction.output) <= set(extraction.prompt)
