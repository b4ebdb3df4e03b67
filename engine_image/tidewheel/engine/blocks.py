"""KV blocks: who holds which, which are cached, which are free.

Only full blocks are shared. A block's key is sha256(parent key, tokens, extras), so equal keys mean equal
prefixes; the tokens are compared as well. Free cached blocks wait in least-recently-used order and can be
revived until something else needs them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass


class CacheInvariantError(AssertionError):
    """The bookkeeping contradicts itself: a bug of ours, never caused by load."""


@dataclass(slots=True, eq=False)
class Block:
    id: int
    num_holders: int = 0
    key: bytes | None = None
    token_ids: tuple[int, ...] = ()
    # Neighbours on the free list; both None while held.
    before: Block | None = None
    after: Block | None = None


class PrefixHasher:
    """Keys of full blocks. `root` is random per process, so nobody can prepare a collision or probe by timing."""

    def __init__(self, *, root: bytes, block_size: int) -> None:
        self._root = root
        self._block_size = block_size

    def extend(self, keys: list[bytes], token_ids: Sequence[int], *, salt: bytes) -> None:
        """Append the keys of every full block of `token_ids` that `keys` does not cover yet."""
        size = self._block_size
        for index in range(len(keys), len(token_ids) // size):
            digest = hashlib.sha256(keys[-1] if keys else self._first_parent(salt))
            digest.update(array("I", token_ids[index * size : (index + 1) * size]).tobytes())
            keys.append(digest.digest())

    def _first_parent(self, salt: bytes) -> bytes:
        # Tagged and length-framed: no two tuples of extras can encode alike.
        return hashlib.sha256(self._root + b"salt" + len(salt).to_bytes(4, "big") + salt).digest()


class BlockPool:
    def __init__(self, *, num_blocks: int, block_size: int, caches_prefixes: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens cannot hold anything")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.caches_prefixes = caches_prefixes
        self.num_free = 0
        self._blocks = [Block(id=i) for i in range(num_blocks)]
        self._by_key: dict[bytes, Block] = {}
        # Sentinels of the doubly linked free list: `_head.after` is taken next.
        self._head, self._tail = Block(id=-1), Block(id=-1)
        self._head.after, self._tail.before = self._tail, self._head
        for block in self._blocks:
            self._link(block, before=self._tail)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def lookup(self, keys: Sequence[bytes], token_ids: Sequence[int], *, max_tokens: int) -> list[Block]:
        """The longest cached prefix of at most `max_tokens` tokens. Takes nothing; see `hold`."""
        found: list[Block] = []
        if not self.caches_prefixes:
            return found
        size = self.block_size
        for index, key in enumerate(keys[: max_tokens // size]):
            block = self._by_key.get(key)
            if block is None or block.token_ids != tuple(token_ids[index * size : (index + 1) * size]):
                break
            found.append(block)
        return found

    def hold(self, blocks: Sequence[Block]) -> None:
        """Add a holder to cached blocks, reviving those on the free list."""
        for block in blocks:
            if block.num_holders == 0:
                self._unlink(block)
            block.num_holders += 1

    def take(self, count: int) -> list[Block]:
        """`count` empty blocks. The caller has asked `num_free` first."""
        if count > self.num_free:
            raise CacheInvariantError(f"{count} blocks taken with {self.num_free} free")
        taken = []
        for _ in range(count):
            block = self._head.after
            assert block is not None
            self._unlink(block)
            self._forget(block)
            block.num_holders = 1
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[Block]) -> None:
        """Drop one holder of each, tail first: the end of a prefix is worth less than its start."""
        for block in reversed(blocks):
            block.num_holders -= 1
            if block.num_holders == 0:
                # A block that was never cached holds nothing of use, so it goes first.
                self._link(block, before=self._tail if block.key else self._head.after)

    def publish(self, block: Block, key: bytes, token_ids: Sequence[int]) -> None:
        """Make a full, computed block findable. A second block with the same content stays private."""
        if self.caches_prefixes and block.key is None and key not in self._by_key:
            block.key = key
            block.token_ids = tuple(token_ids)
            self._by_key[key] = block

    def check(self, holders: Sequence[Sequence[Block]] = ()) -> None:
        """Raise if the books do not balance; `holders` are the block tables of all running requests."""
        on_list = 0
        block = self._head.after
        while block is not None and block is not self._tail:
            if block.num_holders:
                raise CacheInvariantError(f"block {block.id} is free and held {block.num_holders} times")
            on_list += 1
            block = block.after
        held = sum(1 for b in self._blocks if b.num_holders)
        if on_list != self.num_free or on_list + held != self.num_blocks:
            raise CacheInvariantError(f"{on_list} on the free list, {self.num_free} counted, {held} held")
        if sum(b.num_holders for b in self._blocks) != sum(len(table) for table in holders):
            raise CacheInvariantError("holder counts differ from the block tables")
        for key, cached in self._by_key.items():
            if cached.key != key or len(cached.token_ids) != self.block_size:
                raise CacheInvariantError(f"the cache maps to block {cached.id}, which holds something else")

    def _forget(self, block: Block) -> None:
        if block.key is not None:
            del self._by_key[block.key]
            block.key = None
            block.token_ids = ()

    def _link(self, block: Block, *, before: Block | None) -> None:
        assert before is not None
        previous = before.before
        assert previous is not None
        previous.after = before.before = block
        block.before, block.after = previous, before
        self.num_free += 1

    def _unlink(self, block: Block) -> None:
        assert block.before is not None
        assert block.after is not None
        block.before.after, block.after.before = block.after, block.before
        block.before = block.after = None
        self.num_free -= 1
