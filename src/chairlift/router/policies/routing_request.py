"""RoutingRequest: what a policy knows about one request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRequest:
    """What a policy knows about one request.

    Attributes:
        request_id: the HTTP request's id.
        client_address: IP address of the client.
        assigned_replica_id: replica that the session table names for the session; "" for none.
        session_key: value of the session header or cookie, or the body's `user`; "" for none.
        prefix: hashes of the prompt's beginnings, shortest first, as the prefix index keeps them; () if unknown.
        prefix_tokens: estimated number of prompt tokens up to the end of each of these hashes.
        prefix_matches: how many of these hashes each replica has, by its id; replicas without any may be left out.
        prompt_tokens: estimated length of the prompt in tokens.
        adapter: name of the LoRA adapter; "" for none.
    """

    request_id: str = ""
    client_address: str = ""
    assigned_replica_id: str = ""
    session_key: str = ""
    prefix: tuple[bytes, ...] = ()
    prefix_tokens: Sequence[int] = ()
    prefix_matches: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    adapter: str = ""

    def matched_tokens(self, replica_id: str) -> int:
        """Return the estimated number of prompt tokens that the replica has in its prefix cache."""
        num_hashes = min(self.prefix_matches.get(replica_id, 0), len(self.prefix_tokens))
        return self.prefix_tokens[num_hashes - 1] if num_hashes > 0 else 0
