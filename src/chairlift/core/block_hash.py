"""Block hashes: a SHA-256 chain over the tokens of full blocks, rooted in the scope that may share them.

root    = H(model, adapter digest, tenant, salt)   no other tenant, model, adapter or salt has an equal one
hash[i] = H(hash[i - 1], tokens of block i)        so equal hashes mean equal prefixes, not only equal blocks
"""

from collections.abc import Sequence
from hashlib import sha256
from struct import pack

BlockHash = bytes


def root_hash(model_id: str, adapter_digest: str, tenant: str, salt: str = "") -> BlockHash:
    """Return the start of a chain of block hashes.

    The adapter is named by a digest of its files, "" for none: blocks of an older version are no blocks of a newer one.
    Each part is preceded by its length, so that different lists of parts give different bytes.
    """
    parts = (part.encode("utf-8", "surrogatepass") for part in ("chairlift-1", model_id, adapter_digest, tenant, salt))
    return sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()


def extend_block_hashes(hashes: list[BlockHash], root: BlockHash, token_ids: Sequence[int], block_size: int) -> None:
    """Append the hashes of all full blocks of token_ids that `hashes` does not cover yet.

    Raises struct.error for a token id that is not an integer of 64 bits.
    """
    start = len(hashes) * block_size
    count = (len(token_ids) - start) // block_size * block_size
    if count <= 0:
        return
    data = pack(f"<{count}q", *token_ids[start : start + count])  # three times as fast as array("q")
    block_bytes = 8 * block_size
    parent = hashes[-1] if hashes else root
    for offset in range(0, len(data), block_bytes):
        parent = sha256(parent + data[offset : offset + block_bytes]).digest()
        hashes.append(parent)
