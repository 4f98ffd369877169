"""read_template, read_templates: read chat templates from a file or a model folder."""

from collections.abc import Mapping
from pathlib import Path

from chairlift.core.errors import ConfigError, ModelError
from chairlift.text.tokenizer import read_json


def read_template(file: Path) -> str:
    """Return the text of the operator's own template. Raises ConfigError naming the file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"chat_template {file} cannot be read: {reason}", option="chat_template") from None


def read_templates(folder: Path) -> dict[str, str]:
    """Return template name -> Jinja text; empty when the folder has no template. Raises ModelError."""
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    try:
        sources = {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"a chat template in {folder} cannot be read: {error}") from error
    for name in () if sources else ("chat_template.json", "tokenizer_config.json"):
        template = read_json(folder / name).get("chat_template")
        if isinstance(template, str):
            return {"default": template}
        if isinstance(template, Mapping):
            template = [{"name": key, "template": text} for key, text in template.items()]
        if template is not None:
            try:
                return {str(entry["name"]): str(entry["template"]) for entry in template}
            except (TypeError, KeyError) as error:
                raise ModelError(f"{folder / name}: chat_template is neither text nor a list of named ones") from error
    return sources
