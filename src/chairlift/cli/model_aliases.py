"""model_aliases: the names beside the served ones by which requests may name a model: its path, folder or id."""

from pathlib import Path


def model_aliases(model: str) -> tuple[str, ...]:
    """Return the id or built-in name of a model; for a path its forms: as given, relative, absolute, and its last part.

    A path with symbolic links counts with them and without them.
    """
    try:
        path = Path(model).expanduser()
        if not path.exists():
            return (model,)
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError):  # the home folder of an unknown user, or no possible path
        return (model,)
    relative = [] if path.is_absolute() else [str(path), f"./{path}"]
    forms = [model, model.rstrip("/"), *relative, str(path.absolute()), str(resolved), path.name, resolved.name]
    return tuple(form for form in dict.fromkeys(forms) if form)
