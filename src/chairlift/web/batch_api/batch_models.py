"""BatchModels: which models a service has now, and whether a batch that was made for some of them can go on."""

from collections.abc import Callable, Mapping

from chairlift.core.errors import ChairliftError, ModelNotFound
from chairlift.web.batch_api.stored_batch import StoredBatch
from chairlift.web.batch_files.batch_lines import MAX_KEPT_PROBLEMS

ResolveModel = Callable[[str], str]
"""Returns the served name that a name means, "" for none. Raises ModelNotFound and InvalidRequest."""

NOT_RESOLVED = ""
"""What a name means in StoredBatch.models while no replica is known."""


class BatchModels:
    """The models of a service."""

    def __init__(
        self, resolve: ResolveModel, fingerprint: Callable[[], str] = lambda: "", *,
        has_models: Callable[[], bool] = lambda: True, is_held: Callable[[], bool] = lambda: False,
        wait_seconds: float = 0.0, why_not_ready: Callable[[str], str] = lambda model: "",
    ) -> None:  # fmt: skip
        """Prepare.

        Args:
            resolve: see ResolveModel.
            fingerprint: returns what decides on the tokens of the only model, "" where there are several.
            has_models: whether the service knows a model; without one no name is wrong.
            is_held: whether no model is known and requests are held, so that a replica is started for them.
            wait_seconds: seconds that a new batch waits for a model that is not served, before it fails.
            why_not_ready: returns why a served model takes no requests now, "" where it does.
        """
        self._resolve, self._fingerprint = resolve, fingerprint
        self._has_models, self._is_held, self._wait_seconds = has_models, is_held, wait_seconds
        self._why_not_ready = why_not_ready

    @property
    def is_any_known(self) -> bool:
        """Whether the service knows a model."""
        return self._has_models()

    def accept(self, batch: StoredBatch, names: Mapping[str, int], waited_seconds: float) -> str:
        """Keep in a batch what its models are now, or add an error for each that is not served.

        Args:
            batch: the batch.
            names: each name -> number of the first line that has it.
            waited_seconds: how long the batch has waited for its models while others were known.

        Returns why the batch has to wait for its models, "" where it is accepted or has errors.
        """
        if self._is_held():
            batch.models, batch.fingerprint = dict.fromkeys(names, NOT_RESOLVED), self._fingerprint()
            return ""
        models: dict[str, str] = {}
        errors: list[tuple[int, ChairliftError]] = []
        for name, line in names.items():
            try:
                models[name] = self._resolve(name)
            except ModelNotFound as error:
                if self._may_wait(waited_seconds):
                    return f"{error.message}; the batch begins when it is served"
                errors.append((line, error))
            except ChairliftError as error:
                errors.append((line, error))
        for line, each in errors[:MAX_KEPT_PROBLEMS]:
            batch.add_error("invalid_line", each.message, line)
        batch.models, batch.fingerprint = models, self._fingerprint()
        return ""

    def resolve_rest(self, batch: StoredBatch) -> bool:
        """Keep in a batch what its models are that were not known when it was accepted; returns whether it changed."""
        is_changed = False
        if not self._has_models():
            return is_changed
        for name, model in batch.models.items():
            if model == NOT_RESOLVED and (current := self._resolved(name)):
                batch.models[name] = current
                is_changed = True
        return is_changed

    def problem(self, batch: StoredBatch) -> str:
        """Return why the requests of an accepted batch cannot be sent now, "" where they can."""
        if self._is_held():
            return ""
        waits = "the batch goes on when it is served again, or expires"
        for name, model in batch.models.items():
            try:
                current = self._resolve(name)
            except ChairliftError as error:
                return f"the batch was made for the model {model or name!r}: {error.message}; {waits}"
            if model not in (NOT_RESOLVED, current):
                return f"the batch was made for the model {model!r}, this server has {current!r}; {waits}"
            if reason := self._why_not_ready(current):
                return f"{reason}; {waits}"
        if batch.models and batch.fingerprint not in ("", current := self._fingerprint()):
            return (
                f"the batch was made for another model of the name {next(iter(batch.models.values()))!r}: its weights, "
                f"tokenizer, chat template or defaults (fingerprint {batch.fingerprint}) are not those of this server "
                f"({current}); {waits}"
            )
        return ""

    def _may_wait(self, waited_seconds: float) -> bool:
        return waited_seconds < self._wait_seconds or not self._has_models()

    def _resolved(self, name: str) -> str:
        try:
            return self._resolve(name)
        except ChairliftError:
            return NOT_RESOLVED
