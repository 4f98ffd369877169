"""GenerationDefaults from generation_config.json."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.sampling_params import MODEL_DEFAULTS, SamplingParams
from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.config.generation_config import (
    SAMPLING,
    GenerationDefaults,
    read_generation_defaults,
)
from chairlift.model.config.generation_config import (
    parse_generation_defaults as parse_with_problems,
)
from support_models import save_tiny


def parse_generation_defaults(content: dict[str, Any], eos_token_ids: tuple[int, ...]) -> GenerationDefaults:
    defaults, problems = parse_with_problems(content, eos_token_ids)
    assert problems == []
    return defaults


def test_published_files_are_read() -> None:
    llama = {"bos_token_id": 128000, "do_sample": True, "eos_token_id": [128001, 128008, 128009], "temperature": 0.6,
             "top_p": 0.9, "transformers_version": "4.45.0.dev0"}  # fmt: skip
    assert parse_generation_defaults(llama, (128001,)) == GenerationDefaults(
        (128001, 128008, 128009), {"temperature": 0.6, "top_p": 0.9}
    )
    gemma = {"cache_implementation": "hybrid", "do_sample": True, "eos_token_id": [1, 106], "top_k": 64, "top_p": 0.95}
    assert parse_generation_defaults(gemma, (1, 106)) == GenerationDefaults((1, 106), {"top_k": 64, "top_p": 0.95})
    qwen = {"do_sample": False, "eos_token_id": 151643, "max_new_tokens": 2048}
    assert parse_generation_defaults(qwen, (151643,)) == GenerationDefaults((151643,), {"temperature": 0.0}, 2048)


def test_its_end_of_sequence_ids_replace_those_of_the_config_as_in_transformers() -> None:
    assert parse_generation_defaults({"eos_token_id": [7, 9]}, (2, 7)).eos_token_ids == (7, 9)
    assert parse_generation_defaults({}, (2, 7)).eos_token_ids == (2, 7)


def test_no_sampling_means_temperature_zero_whatever_else_is_said() -> None:
    content = {"do_sample": False, "temperature": 0.7, "top_p": 0.5, "repetition_penalty": 1.1}
    assert parse_generation_defaults(content, ()).sampling == {"temperature": 0.0, "repetition_penalty": 1.1}


def test_a_field_that_is_not_applied_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save_tiny("llama", tmp_path)
    config, path = read_decoder_config(folder), folder / "generation_config.json"
    with caplog.at_level(logging.WARNING, "chairlift"):
        path.write_text(json.dumps({"num_beams": 1, "suppress_tokens": None, "bad_words_ids": [], "min_length": 0}))
        read_generation_defaults(folder, config)
        assert not caplog.records
        path.write_text(json.dumps({"num_beams": 4, "suppress_tokens": [5], "forced_eos_token_id": 2}))
        read_generation_defaults(folder, config)
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: transformers' generate() applies forced_eos_token_id, suppress_tokens, num_beams, Chairlift does not"
    ]


def test_nothing_said_leaves_everything_neutral() -> None:
    assert parse_generation_defaults({}, (2,)) == GenerationDefaults((2,))
    assert parse_generation_defaults({"temperature": None, "eos_token_id": None}, (2,)) == GenerationDefaults((2,))


def test_defaults_are_what_sampling_params_resolve_with() -> None:
    defaults = parse_generation_defaults({"do_sample": True, "temperature": 0.6, "top_k": 20, "min_p": 0.1}, ())
    resolved = SamplingParams(**{**MODEL_DEFAULTS, "top_k": 5}).with_defaults(defaults.sampling, max_tokens=7, seed=1)
    assert (resolved.temperature, resolved.top_k, resolved.min_p, resolved.top_p) == (0.6, 5, 0.1, 1.0)
    assert set(SAMPLING) <= set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"do_sample": "yes"}, "do_sample"),
        ({"eos_token_id": -2}, "eos_token_id"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_an_invalid_value_is_left_out_with_a_warning_that_names_file_and_field(
    tmp_path: Path, content: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_tiny("llama", tmp_path)
    file = folder / "generation_config.json"
    valid = {"min_p": 0.1, "eos_token_id": [5, 9]}
    file.write_text(json.dumps(valid | content))
    config = read_decoder_config(folder)
    expected = GenerationDefaults(config.eos_token_ids if "eos_token_id" in content else (5, 9), {"min_p": 0.1})
    assert read_generation_defaults(folder, config) == expected
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith(f"{file}: {said} ") and message.endswith("; it is left out")


@pytest.mark.parametrize("text", ["{", "", "[]", "null", "version https://git-lfs.github.com/spec/v1", '{"a": ' * 9999])
def test_a_file_that_is_no_json_object_is_a_warning(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_tiny("llama", tmp_path)
    (folder / "generation_config.json").write_text(text)
    assert read_generation_defaults(folder, read_decoder_config(folder)) == GenerationDefaults((2,))
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{folder}/generation_config.json" in message and message.endswith(
        "; the model has no defaults for requests"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (2,)), (-1, (2,)), ([], (2,)), ([None], (2,)), ([-1, None], (2,)), ([1, None], (1,)), ([1, -1], (1,)),
        ([7, None, 7, 3], (7, 3)), (0, (0,)),
    ],
)  # fmt: skip
def test_no_end_of_sequence_has_several_spellings_and_that_of_the_config_applies_then(
    value: Any, expected: tuple[int, ...]
) -> None:
    assert parse_generation_defaults({"eos_token_id": value}, (2,)).eos_token_ids == expected


def test_other_tokens_may_be_absent_in_each_spelling_and_nulls_are_no_defaults() -> None:
    for value in (None, -1, []):
        content = {"pad_token_id": value, "bos_token_id": value, "decoder_start_token_id": value}
        assert parse_generation_defaults(content, (2,)) == GenerationDefaults((2,))
    content = dict.fromkeys((*SAMPLING, "do_sample", "max_new_tokens", "max_length", "eos_token_id"))
    assert parse_generation_defaults(content, (2,)) == GenerationDefaults((2,))


def test_unknown_fields_do_not_matter() -> None:
    assert parse_generation_defaults({"num_beams": 4, "foo": {"bar": 1}}, (1,)) == GenerationDefaults((1,))


def test_a_folder_without_the_file_has_the_eos_of_its_config(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path)
    assert read_generation_defaults(folder, read_decoder_config(folder)) == GenerationDefaults((2, 7))
    (folder / "generation_config.json").unlink()
    assert read_generation_defaults(folder, read_decoder_config(folder)) == GenerationDefaults((2,))
