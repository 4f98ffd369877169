"""split_tag, choose_gguf: which GGUF file a name such as user/repo:Q4_K_M means. Imports no torch.

    user/repo:Q4_K_M, hf.co/user/repo:q4_k_m      the file whose name ends in -Q4_K_M.gguf or .Q4_K_M.gguf
    user/repo                                     Q4_K_M, else Q8_0, else the first file

Files of vision parts (mmproj), calibration data (imatrix) and layers that predict further tokens (mtp) are never meant.
Split files belong together.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from chairlift.core.errors import ModelError

DEFAULT_TAG = "latest"
"""The tag of Ollama that means no type."""

DEFAULT_TAGS = ("Q4_K_M", "Q8_0")
"""What a name without a tag means, as far as a repository has it; that of llama.cpp."""

HOST = re.compile(r"(https?://)?(huggingface\.co|hf\.co)/", re.IGNORECASE)
"""Beginning of the names of hub ids in other programs."""

TAG = re.compile(r"[A-Za-z0-9][\w.-]*")
SPLIT_END = re.compile(r"-(\d{5})-of-(\d{5})$")
OTHER_PARTS = re.compile(r"(^|[-_.])(mmproj|imatrix|mtp)([-_.]|$)", re.IGNORECASE)
MAX_SHOWN = 12


def split_tag(name: str) -> tuple[str, str | None]:
    """Return a hub id without its host and tag, and the tag; a name of another form is returned as it is."""
    if (host := HOST.match(name)) is not None:
        name = name[host.end() :].rstrip("/")
    repository, separator, tag = name.partition(":")
    if separator and TAG.fullmatch(tag) and repository.count("/") == 1:
        return repository, None if tag.lower() == DEFAULT_TAG else tag
    return name, None


def choose_gguf(files: Sequence[str], tag: str | None, name: str) -> list[str]:
    """Return the file that a tag means, or several in their order if it is split.

    Args:
        files: names of all files, with folders separated by "/".
        tag: the type of quantization, or any end of the file's name, in any case; None for the default.
        name: the folder or repository, for messages.

    Raises ModelError if there is none, with those that there are.
    """
    models = sorted(each for each in files if is_model(each))
    if not models:
        raise ModelError(f"{name} holds no GGUF file of a model", model=name)
    for wanted in DEFAULT_TAGS if tag is None else (tag,):
        if found := [each for each in models if has_tag(each, wanted)]:
            return split_siblings(found[0], models)
    if tag is None:
        return split_siblings(models[0], models)
    raise ModelError(f"{name} has no GGUF file of type {tag}; it has {shown_files(models)}", model=name)


def is_model(file: str) -> bool:
    """Return whether a file is a GGUF file that may be a model, by its name."""
    path = PurePosixPath(file)
    return path.suffix.lower() == ".gguf" and not OTHER_PARTS.search(path.stem)


def has_tag(file: str, tag: str) -> bool:
    """Return whether a file's name ends in a tag, in any case, behind "-" or "." or as a whole."""
    stem = SPLIT_END.sub("", PurePosixPath(file).stem).lower()
    return stem == tag.lower() or stem.endswith((f"-{tag.lower()}", f".{tag.lower()}"))


def split_siblings(file: str, files: Sequence[str]) -> list[str]:
    """Return the files that belong together with one, in their order; only it itself if it is not split."""
    stem = PurePosixPath(file).stem
    if (match := SPLIT_END.search(stem)) is None:
        return [file]
    parent, begin, count = PurePosixPath(file).parent, stem[: match.start()], match[2]
    names = (str(parent / f"{begin}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1))
    return [each for each in names if each in files]


def has_all_parts(files: Sequence[str]) -> bool:
    """Return whether the files that split_siblings returned are all that their names count."""
    match = SPLIT_END.search(PurePosixPath(files[0]).stem)
    return match is None or len(files) == int(match[2])


def shown_files(models: Sequence[str]) -> str:
    """Return names of files for a message, of split ones the first."""
    splits = ((each, SPLIT_END.search(PurePosixPath(each).stem)) for each in models)
    first = [each for each, match in splits if match is None or int(match[1]) == 1]
    more = f" and {len(first) - MAX_SHOWN} more" if len(first) > MAX_SHOWN else ""
    return ", ".join(first[:MAX_SHOWN]) + more
