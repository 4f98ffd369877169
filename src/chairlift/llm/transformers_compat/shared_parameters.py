"""SharedParameters: finds a parameter of the user's model that was replaced since the engine's start."""

from typing import Any


class SharedParameters:
    """The parameters that an engine shares with a model of the user, as of the engine's start.

    A parameter that was replaced is an error: the engine has the old one.
    """

    def __init__(self, model: Any) -> None:
        """Note the parameters; a model folder or None has none."""
        self._model = model
        self._ids = self._current()

    def _current(self) -> dict[str, int]:
        """Return the identity of each parameter. The engine holds the old ones, so no new one can have their place."""
        if not hasattr(self._model, "named_parameters"):
            return {}
        return {name: id(parameter) for name, parameter in self._model.named_parameters()}

    def check(self) -> None:
        """Raise RuntimeError that names a parameter which was replaced instead of changed in place."""
        now = self._current()
        if now == self._ids:
            return
        name = next(name for name in (*now, *self._ids) if now.get(name) != self._ids.get(name))
        raise RuntimeError(
            f"the parameter {name} was replaced, but the engine has the one before: change parameters in place, as in "
            "`parameter.copy_(new)`, or destroy() the manager and start another one"
        )
