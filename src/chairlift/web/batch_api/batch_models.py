"""BatchModels: which models a service has now, and whether a batch that was made for some of them can go on."""

from collections.abc import Callable, Mapping

from chairlift.core.errors import ChairliftError
from chairlift.web.batch_api.stored_batch import StoredBatch
from chairlift.web.batch_files.batch_lines import MAX_KEPT_PROBLEMS

ResolveModel = Callable[[str], str]
"""Returns the served name that a name means, "" for none. Raises ModelNotFound and InvalidRequest."""


class BatchModels:
    """The models of a service."""

    def __init__(self, resolve: ResolveModel, fingerprint: Callable[[], str] = lambda: "") -> None:
        """Prepare; `fingerprint` returns what decides on the tokens of the only model, "" where there are several."""
        self._resolve, self._fingerprint = resolve, fingerprint

    def accept(self, batch: StoredBatch, names: Mapping[str, int]) -> None:
        """Keep in a batch what its models are now, or add an error for each that is not served.

        `names`: each name -> number of the first line that has it.
        """
        for name, line in names.items():
            try:
                batch.models[name] = self._resolve(name)
            except ChairliftError as error:
                if len(batch.errors) < MAX_KEPT_PROBLEMS:
                    batch.add_error("invalid_line", error.message, line)
        batch.fingerprint = self._fingerprint()

    def problem(self, batch: StoredBatch) -> str:
        """Return why the requests of an accepted batch cannot be sent now, "" where they can."""
        waits = "the batch goes on when it is served again, or expires"
        for name, model in batch.models.items():
            try:
                current = self._resolve(name)
            except ChairliftError as error:
                return f"the batch was made for the model {model!r}: {error.message}; {waits}"
            if current != model:
                return f"the batch was made for the model {model!r}, this server has {current!r}; {waits}"
        if batch.models and batch.fingerprint not in ("", current := self._fingerprint()):
            return (
                f"the batch was made for another model of the name {next(iter(batch.models.values()))!r}: its weights, "
                f"tokenizer, chat template or defaults (fingerprint {batch.fingerprint}) are not those of this server "
                f"({current}); {waits}"
            )
        return ""
