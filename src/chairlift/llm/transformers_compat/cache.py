"""PagedAttentionCache: the engine's KV cache under the names and calls of transformers' cache.

A block holds block_size tokens of the layers of one layer group; a model without sliding windows has one group. A slot
is block * block_size + offset.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chairlift.core.errors import ConfigError, OutOfBlocks
from chairlift.engine.config import CacheConfig
from chairlift.engine.kv.block_table import BlockTable
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.llm.build_from_module import group_layers, num_fitting_blocks
from chairlift.llm.transformers_compat.request_state import RequestState
from chairlift.llm.transformers_compat.settings import resolve_settings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """Where the keys and values of each layer are.

    Attributes:
        places: for each layer (layer group, index within the group).
        num_kv_heads, head_dim: shape of a key.
    """

    places: tuple[tuple[int, int], ...]
    num_kv_heads: int
    head_dim: int

    @property
    def layers_per_group(self) -> int:
        """Layers whose keys and values one block holds."""
        return 1 + max(index for _, index in self.places)


class PagedAttentionCache:
    """A face of a KVCacheManager: blocks by request id, and the tensors behind them.

    Blocks that a scheduler gives to a sequence are the scheduler's own; those of allocate_blocks belong to the caller
    until free_blocks. Not thread-safe, but for the cache of a running engine.

    Attributes:
        manager: the KVCacheManager that hands out the blocks.
        layout: None for a cache without tensors.
        max_batch_tokens: tokens of a batch.
    """

    def __init__(
        self, config: Any, continuous_batching_config: Any = None, device: Any = "cpu", *arguments: Any,
        dtype: Any = None, **unused: Any,
    ) -> None:  # fmt: skip
        """Create a cache.

        Args:
            config: a model config of transformers; or a CacheConfig or a KVCacheManager, for a cache without tensors.
            continuous_batching_config: transformers' ContinuousBatchingConfig or GenerationConfig, or a mapping; its
                num_blocks is the number of blocks, None for as many as a quarter of the free memory holds.
            device: device of the tensors.
            arguments: the other positional arguments of transformers; the first dtype of torch among them is used.
            dtype: of the tensors; None for float16, as in transformers.
            unused: the other keyword arguments of transformers, which have no effect on one device.

        Raises ConfigError for an option that cannot be used.
        """
        self._tables: dict[str, BlockTable] = {}
        self._run: Callable[[Callable[[], Any]], Any] = _run_here
        self._tensors: list[tuple[Any, Any]] | None = None
        self._device = device
        self._dtype = dtype if dtype is not None else next((each for each in arguments if _is_dtype(each)), None)
        self.config = config
        self.layout: LayerLayout | None = None
        options = resolve_settings(None, continuous_batching_config).options
        self.max_batch_tokens = options.get("max_batch_tokens", 2048)
        self.manager: KVCacheManager
        if isinstance(config, KVCacheManager):
            self.manager = config
            return
        if isinstance(config, CacheConfig):
            self.manager = KVCacheManager(config)
            return
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        heads = text.num_attention_heads
        windows, places = group_layers(layer_windows(text))
        self.layout = layout = LayerLayout(
            places, getattr(text, "num_key_value_heads", None) or heads,
            getattr(text, "head_dim", None) or text.hidden_size // heads,
        )  # fmt: skip
        size = options.get("block_size", 16)
        num_blocks = options.get("num_blocks")
        if num_blocks is None:
            block_bytes = 2 * layout.layers_per_group * size * layout.num_kv_heads * layout.head_dim * self._itemsize()
            context = getattr(text, "max_position_embeddings", None) or 2048
            useful = options.get("max_running_requests", 256) * len(windows) * -(-context // size)
            num_blocks = min(useful, num_fitting_blocks(block_bytes, device))
        self.manager = KVCacheManager(CacheConfig(
            num_blocks=num_blocks, block_size=size, windows=windows,
            enable_prefix_caching=options.get("enable_prefix_caching", True),
        ))  # fmt: skip

    @classmethod
    def of_engine(
        cls, manager: KVCacheManager, run: Callable[[Callable[[], Any]], Any], max_batch_tokens: int
    ) -> "PagedAttentionCache":
        """Return the face of a running engine's cache; `run` calls a function where the cache may be used."""
        cache = cls(manager)
        cache._run, cache.max_batch_tokens = run, max_batch_tokens
        return cache

    def use_tensors(self, tensors: list[tuple[Any, Any]], layout: LayerLayout) -> None:
        """Use the keys and values of a runner, by layer index within a group; tensors of its own are dropped."""
        self._tensors, self.layout = tensors, layout

    # -- blocks ----------------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""
        return self.manager.pool.total

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.manager.config.block_size

    page_size = block_size

    @property
    def device(self) -> Any:
        """The device of the tensors."""
        return self._device if self._tensors is None else self._tensors[0][0].device

    @property
    def dtype(self) -> Any:
        """The dtype of the tensors; None for a cache without tensors."""
        return self._dtype if self._tensors is None else self._tensors[0][0].dtype

    @property
    def use_prefix_sharing(self) -> bool:
        """Whether requests share equal prefixes."""
        return self.manager.config.enable_prefix_caching

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be allocated; blocks that only the prefix cache holds are among them."""
        available: int = self._run(lambda: self.manager.pool.available)
        return available

    def allocate_blocks(
        self, n_blocks: int, request: str | RequestState, allocated_blocks: int | None = None
    ) -> list[int] | int | None:
        """Allocate blocks in every layer group for a request, after those that it has.

        Args:
            n_blocks: blocks in each layer group.
            request: its id or its state.
            allocated_blocks: blocks that it has, as newer versions of transformers pass them.

        Returns the ids of the new blocks for an id; their number in one layer group for a state, or with
        allocated_blocks. None, without a change, when too few are free.
        """
        name = request if isinstance(request, str) else request.request_id
        try:
            blocks: list[int] = self._run(lambda: self._allocate(name, n_blocks))
        except OutOfBlocks:
            return None
        if isinstance(request, RequestState):
            request.allocated_blocks += len(blocks)
        elif allocated_blocks is None:
            return blocks
        return n_blocks

    def _allocate(self, name: str, n_blocks: int) -> list[int]:
        manager, table = self.manager, self._tables.get(name)
        held = 0 if table is None else len(table.groups[0])
        num_tokens = (held + n_blocks) * self.block_size
        if table is not None:
            return [block for _, _, block in manager.reserve(table, num_tokens)]
        table = self._tables[name] = manager.allocate_table(manager.no_hit, num_tokens, ())
        return [block for _, _, block in table.held()]

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        """Free the blocks that were allocated for a request; does nothing for a request without any."""
        table = self._tables.pop(request_id, None)
        if table is not None:
            self._run(lambda: self.manager.release(table, ()))

    def free_all_requests(self, clear_ledgers: bool = False) -> None:
        """Free every block that was allocated here; with `clear_ledgers` cached prefixes are evicted, too."""
        for name in list(self._tables):
            self.free_blocks(name)
        if clear_ledgers:
            self._run(self.manager.evict_all)

    def reset(self) -> None:
        """Free every block that was allocated here, and evict cached prefixes."""
        self.free_all_requests(clear_ledgers=True)

    def num_allocated_blocks(self) -> int:
        """Return how many blocks callers hold, over all layer groups."""
        return sum(table.num_held for table in list(self._tables.values()))

    def get_block_table(self, request_id: str, group: int = 0) -> list[int]:
        """Return the blocks that were allocated for a request in a layer group; none for another request."""
        table = self._tables.get(request_id)
        return [] if table is None else list(table.groups[group])

    def get_write_indices(self, request_id: str, past_length: int, query_length: int, group: int = 0) -> list[int]:
        """Return the slots of the tokens from past_length on. Raises IndexError for more than the request's blocks."""
        blocks, size = self.get_block_table(request_id, group), self.block_size
        return [blocks[at // size] * size + at % size for at in range(past_length, past_length + query_length)]

    def get_read_indices(self, request_id: str, past_length: int, query_length: int, group: int = 0) -> list[int]:
        """Return the slots of the tokens that the newest ones attend to, as far as the layer group's window reaches."""
        window = self.manager.layouts[group].window
        first = 0 if window is None else max(0, past_length - window + 1)
        return self.get_write_indices(request_id, first, past_length - first + query_length, group)

    def extend_read_and_write_indices(
        self, request_id: str, past_length: int, query_length: int, read_index: list[list[int]] | None,
        write_index: list[list[int]],
    ) -> None:  # fmt: skip
        """Append a request's slots to the lists of each layer group."""
        for group in range(len(self.manager.layouts)):
            write_index[group].extend(self.get_write_indices(request_id, past_length, query_length, group))
            if read_index is not None:
                read_index[group].extend(self.get_read_indices(request_id, past_length, query_length, group))

    def check_integrity(self) -> list[str]:
        """Check that every block is free, cached or held by as many tables as it counts; return errors."""
        errors: list[str] = self._run(self.manager.check_integrity)
        return errors

    # -- tensors ---------------------------------------------------------------------------------------------------

    @property
    def key_cache(self) -> "list[torch.Tensor]":
        """The keys of each layer: [blocks, block_size, kv heads, head_dim]."""
        layout, tensors = self._layout(), self._pairs()
        return [tensors[index][0] for _, index in layout.places]

    @property
    def value_cache(self) -> "list[torch.Tensor]":
        """The values of each layer, with the shape of the keys."""
        layout, tensors = self._layout(), self._pairs()
        return [tensors[index][1] for _, index in layout.places]

    def update(
        self, key_states: "torch.Tensor", value_states: "torch.Tensor", layer_idx: int, read_index: Any,
        write_index: Any = None, **unused: Any,
    ) -> "tuple[torch.Tensor, torch.Tensor]":  # fmt: skip
        """Write keys and values of new tokens; return those that the tokens attend to.

        Args:
            key_states: [1, kv heads, tokens, head_dim].
            value_states: the same shape.
            layer_idx: index of the layer.
            read_index: slots to read, of the layer or a list by layer group; or a mapping with the keys "read_index"
                and "write_index", as in newer versions of transformers. Without slots the new states are returned.
            write_index: slots of the new tokens.
            unused: other arguments of transformers.

        Returns keys and values [1, kv heads, slots to read, head_dim].
        """
        if isinstance(read_index, Mapping):
            read_index, write_index = read_index["read_index"], read_index["write_index"]
        group, index = self._layout().places[layer_idx]
        reads, writes = self._slots(read_index, group), self._slots(write_index, group)
        size, pair = self.block_size, self._pairs()[index]

        def apply() -> list[Any]:
            results = []
            for tensor, states in zip(pair, (key_states, value_states), strict=True):
                tensor[writes // size, writes % size] = states[0].transpose(0, 1).to(tensor.dtype)
                read = tensor[reads // size, reads % size].transpose(0, 1)[None] if len(reads) else states
                results.append(read)
            return results

        keys, values = self._run(apply)
        return keys, values

    def _slots(self, index: Any, group: int) -> "torch.Tensor":
        import torch

        if isinstance(index, Sequence) and len(index) and not isinstance(index[0], int):
            index = index[group]
        if isinstance(index, torch.Tensor) and index.ndim > 1:
            index = index[group]
        return torch.as_tensor(index, dtype=torch.int64, device=self._device)

    def _layout(self) -> LayerLayout:
        if self.layout is None:
            raise ConfigError("the cache has no tensors; make it of a model config", option="config")
        return self.layout

    def _pairs(self) -> list[tuple[Any, Any]]:
        """Return the tensors, which are allocated when they are used for the first time."""
        import torch

        layout = self._layout()
        if self._tensors is None:
            shape = (self.num_blocks, self.block_size, layout.num_kv_heads, layout.head_dim)
            dtype = self._dtype or torch.float16
            keys, values = (
                [torch.zeros(shape, dtype=dtype, device=self._device) for _ in range(layout.layers_per_group)]
                for _ in range(2)
            )
            self._tensors = list(zip(keys, values, strict=True))
        return self._tensors

    def _itemsize(self) -> int:
        import torch

        return int((self._dtype or torch.float16).itemsize)


def layer_windows(config: Any) -> list[int | None]:
    """Return the attention window of each layer of a model config of transformers, None for full attention.

    Raises ConfigError for another kind of attention.
    """
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if types is None:
        has_windows = getattr(config, "use_sliding_window", True)
        return [window if has_windows else None] * int(config.num_hidden_layers)
    known: dict[str, int | None] = {"full_attention": None, "sliding_attention": window}
    if unknown := sorted(set(types) - set(known)):
        raise ConfigError(f"a paged cache has no layers of the type {unknown[0]!r}", option="layer_types")
    return [known[each] for each in types]


def _is_dtype(value: Any) -> bool:
    return type(value).__name__ == "dtype"


def _run_here(function: Callable[[], Any]) -> Any:
    return function()
