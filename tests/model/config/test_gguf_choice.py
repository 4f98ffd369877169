"""Names of GGUF files on the hub: hosts and tags, the default, split files, what is never a model."""

import pytest

from chairlift.core.errors import ModelError
from chairlift.model.config.gguf_choice import choose_gguf, split_tag

FILES = [
    "README.md", "config.json", "mmproj-model-f16.gguf", "model.imatrix.gguf", "Model-Q8_0.gguf", "Model-Q4_K_M.gguf",
    "Model-Q4_K_S.gguf", "model.bf16.gguf", "Q6_K/Model-Q6_K-00002-of-00002.gguf",
    "Q6_K/Model-Q6_K-00001-of-00002.gguf",
    "model-f16-mmproj.gguf", "UD/Model-UD-IQ4_XS.gguf",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("user/repo:Q4_K_M", ("user/repo", "Q4_K_M")), ("hf.co/user/repo:q8_0", ("user/repo", "q8_0")),
        ("https://huggingface.co/user/repo/", ("user/repo", None)), ("huggingface.co/u/r", ("u/r", None)),
        ("user/repo", ("user/repo", None)), ("chairlift:demo", ("chairlift:demo", None)), ("a/b:", ("a/b:", None)),
        ("a/b/c:d", ("a/b/c:d", None)), ("a:b", ("a:b", None)),
    ],
)  # fmt: skip
def test_a_name_has_a_host_and_a_tag(name: str, expected: tuple[str, str | None]) -> None:
    assert split_tag(name) == expected


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        (None, ["Model-Q4_K_M.gguf"]), ("q8_0", ["Model-Q8_0.gguf"]), ("BF16", ["model.bf16.gguf"]),
        ("Q6_K", ["Q6_K/Model-Q6_K-00001-of-00002.gguf", "Q6_K/Model-Q6_K-00002-of-00002.gguf"]),
        ("IQ4_XS", ["UD/Model-UD-IQ4_XS.gguf"]), ("UD-IQ4_XS", ["UD/Model-UD-IQ4_XS.gguf"]),
        ("Model-Q4_K_S", ["Model-Q4_K_S.gguf"]),
    ],
)  # fmt: skip
def test_a_tag_is_the_end_of_a_file_s_name(tag: str | None, expected: list[str]) -> None:
    assert choose_gguf(FILES, tag, "user/repo") == expected


def test_without_the_default_types_the_first_file_is_meant() -> None:
    assert choose_gguf(["b-Q5_0.gguf", "a-Q6_K.gguf"], None, "r") == ["a-Q6_K.gguf"]
    assert choose_gguf(["b-Q8_0.gguf", "a-Q6_K.gguf"], None, "r") == ["b-Q8_0.gguf"]


def test_a_missing_type_names_what_there_is_and_no_parts_of_vision() -> None:
    with pytest.raises(ModelError) as caught:
        choose_gguf(FILES, "Q4_0", "user/repo")
    message = caught.value.message
    assert message.startswith("user/repo has no GGUF file of type Q4_0; it has Model-Q4_K_M.gguf, Model-Q4_K_S.gguf, ")
    assert "00002-of" not in message and "mmproj" not in message and "imatrix" not in message
    with pytest.raises(ModelError, match="user/repo holds no GGUF file of a model"):
        choose_gguf(["mmproj.gguf", "a.safetensors"], None, "user/repo")
    with pytest.raises(ModelError, match=r"m-11\.gguf and 28 more"):
        choose_gguf([f"m-{number:02}.gguf" for number in range(40)], "Q4_0", "r")
