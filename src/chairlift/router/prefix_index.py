"""PrefixIndex: remembers which beginnings of prompts each replica has computed, from what the router sent there.

holders[hash]  ──> the replicas that have it     hashes of one chain share one set object where their holders are equal
replica.hashes ──> its hashes, oldest first      a hash is never older than the hashes that extend it
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

DEFAULT_MAX_BYTES_PER_REPLICA = 4 * 2**20
"""About 10,000 hashes, which are two million tokens of text: more than the KV cache of most replicas."""

ENTRY_BYTES: Final = 360
"""Memory of one hash of one replica besides the hash itself."""


class PrefixIndex:
    """For each running replica the prefix hashes that it has probably cached, least recently used ones dropped first.

    Works for one process of a replica at a time: a new incarnation starts with nothing.
    """

    def __init__(self, max_bytes_per_replica: int = DEFAULT_MAX_BYTES_PER_REPLICA) -> None:
        self._max_bytes = max_bytes_per_replica
        self._replicas: dict[str, _ReplicaHashes] = {}
        self._holders: dict[bytes, frozenset[_ReplicaHashes]] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of all entries."""
        return sum(replica.num_bytes for replica in self._replicas.values())

    def record(self, replica_id: str, incarnation: str, prefix: Sequence[bytes]) -> None:
        """Record that a replica has computed a prompt with these hashes, shortest first and without gaps.

        Does nothing for the incarnation before the current one, whose last answers may come late.
        """
        replica = self._replica_of(replica_id, incarnation)
        if replica is None:
            return
        hashes, holders = replica.hashes, self._holders
        before: frozenset[_ReplicaHashes] | None = None
        after = replica.alone
        for each in reversed(prefix):
            if each in hashes:
                hashes.move_to_end(each)
                continue
            hashes[each] = None
            replica.num_bytes += ENTRY_BYTES + len(each)
            if (current := holders.get(each)) is None:
                holders[each] = replica.alone
                continue
            if current is not before:
                before, after = current, current | replica.alone
            holders[each] = after
        while replica.num_bytes > self._max_bytes:
            each, _ = hashes.popitem(last=False)
            replica.num_bytes -= ENTRY_BYTES + len(each)
            self._remove_holder(each, replica)

    def match(self, prefix: Sequence[bytes], incarnations: Mapping[str, str]) -> dict[str, int]:
        """Return how many hashes of a prefix each replica has, for those that have at least one.

        `incarnations` has the current incarnation of each replica in question, by its id. The cost follows the number
        of matched hashes and their holders, not the number of replicas or the size of the index.
        """
        matches: dict[str, int] = {}
        matching: frozenset[_ReplicaHashes] = frozenset()
        previous: frozenset[_ReplicaHashes] | None = None
        length = 0
        for each in prefix:
            if (holders := self._holders.get(each)) is None:
                break
            if length == 0:
                matching = frozenset(one for one in holders if incarnations.get(one.replica_id) == one.incarnation)
            elif holders is not previous:
                for replica in matching - holders:
                    matches[replica.replica_id] = length
                matching &= holders
            if not matching:
                break
            previous = holders
            length += 1
        return matches | {replica.replica_id: length for replica in matching}

    def forget(self, replica_id: str) -> None:
        """Forget all about a replica, one that is unknown too."""
        replica = self._replicas.pop(replica_id, None)
        if replica is not None:
            for each in replica.hashes:
                self._remove_holder(each, replica)

    def retain(self, replica_ids: Collection[str]) -> None:
        """Forget every replica whose id is not among these."""
        for replica_id in self._replicas.keys() - set(replica_ids):
            self.forget(replica_id)

    def check_integrity(self) -> None:
        """Verify that both directions of the index agree. Raises AssertionError."""
        pairs = {(each, replica) for replica in self._replicas.values() for each in replica.hashes}
        assert pairs == {(each, replica) for each, holders in self._holders.items() for replica in holders}
        for replica in self._replicas.values():
            assert replica.num_bytes == sum(ENTRY_BYTES + len(each) for each in replica.hashes) <= self._max_bytes

    def _replica_of(self, replica_id: str, incarnation: str) -> "_ReplicaHashes | None":
        replica = self._replicas.get(replica_id)
        if replica is None:
            replica = self._replicas[replica_id] = _ReplicaHashes(replica_id, incarnation, None)
        elif replica.incarnation != incarnation:
            if replica.previous_incarnation == incarnation:
                return None
            self.forget(replica_id)
            replica = self._replicas[replica_id] = _ReplicaHashes(replica_id, incarnation, replica.incarnation)
        return replica

    def _remove_holder(self, each: bytes, replica: "_ReplicaHashes") -> None:
        holders = self._holders[each]
        if len(holders) == 1:
            del self._holders[each]
        else:
            self._holders[each] = holders - replica.alone


class _ReplicaHashes:
    """The hashes of one incarnation of a replica; compared by identity."""

    __slots__ = ("alone", "hashes", "incarnation", "num_bytes", "previous_incarnation", "replica_id")

    def __init__(self, replica_id: str, incarnation: str, previous_incarnation: str | None) -> None:
        self.replica_id, self.incarnation, self.previous_incarnation = replica_id, incarnation, previous_incarnation
        self.hashes: OrderedDict[bytes, None] = OrderedDict()
        self.num_bytes = 0
        self.alone = frozenset({self})
