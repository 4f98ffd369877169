"""Finding: one problem of a live server."""

from dataclasses import dataclass

from chairlift.cli.diagnosis.check_remedies import CHECKS, PAGE, anchor

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem.

    Attributes:
        check: a name of CHECKS.
        level: ERROR if requests fail or will fail soon, else WARNING.
        server: URL of the server or replica.
        what: what is wrong, with the measured value.
    """

    check: str
    level: str
    server: str
    what: str

    def as_json(self) -> dict[str, str]:
        """Return the finding with its remedy and the section of the troubleshooting page."""
        check = CHECKS[self.check]
        return {
            "level": self.level, "check": self.check, "server": self.server, "what": " ".join(self.what.split()),
            "do": check.remedy, "see": f"{PAGE}#{anchor(check.section)}",
        }  # fmt: skip
