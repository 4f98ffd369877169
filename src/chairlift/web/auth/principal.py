"""Principal: the client of a request, as its API key or token identifies it."""

import re
from dataclasses import dataclass

ADMIN = "admin"
"""The scope that the routes under /admin/ need."""

USER = "user"
"""The scope that every other route needs."""

TENANT_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class Principal:
    """The client of a request.

    Attributes:
        tenant: the tenant whose limits apply; "" without keys.
        scopes: USER, ADMIN, both, or none.
    """

    tenant: str = ""
    scopes: frozenset[str] = frozenset({USER})
