"""Who holds which KV page: block tables, reference counts and the prefix cache. It moves no data and knows no
tensor.

A page is in exactly one of three states: used (in at least one block table), cached (in none, its content
findable), or free. Only full pages whose KV has been computed are findable, so a shared page is never written
again.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from ..sequence import Sequence


class Block:
    """One full page of tokens behind one particular prefix, and the pages that hold its KV.

    The index finds a block under (the parent's id, whether its pages hold the prediction layer's latents too,
    the tokens). Ids are never reused, so equal keys mean equal whole prefixes: the hash only finds candidates,
    and the dict compares parent and tokens before it answers.

    Several pages hold one block when sequences computed it side by side; then all of them are in use. A block
    that lost its last page is dead and never comes back, and no block dies before the blocks behind it.
    """

    __slots__ = ("id", "key", "pages", "parent")

    def __init__(self, id_: int, key: tuple[int, ...], parent: Block | None) -> None:
        self.id = id_
        self.key = key
        self.parent = parent
        self.pages: list[int] = []

    @property
    def predicted(self) -> bool:
        """Whether the pages hold the prediction layer's latents. No block behind one that lacks them has them."""
        return bool(self.key[1])


@dataclass(frozen=True, slots=True)
class Flush:
    """What emptying the prefix cache did, in pages."""

    dropped: int
    kept: int  # still findable, because sequences are running on them
    why_kept: str | None  # None when nothing was kept


class PageAccountingError(Exception):
    """The page manager contradicts itself: a defect of the engine, never of a request."""


class PageManager:
    """Pages 0 .. pages - 1 of page_size tokens each. One thread owns it."""

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"a cache needs at least one page of one token, not {pages} of {page_size}")
        self.total = pages
        self.page_size = page_size
        self.limit = pages  # pages that may be used and cached together: the cap, or all
        self.used = 0
        self.prefix = True
        self.predicted = (
            False  # whether a prefix is of use only where the prediction layer's latents are there
        )
        self._refs = [0] * pages
        self._blocks: list[Block | None] = [None] * pages
        self._free = list(range(pages - 1, -1, -1))
        self._lru: OrderedDict[int, None] = OrderedDict()  # cached pages, the next to go first
        self._index: dict[tuple[int, ...], Block] = {}
        self._tables: dict[
            int, tuple[Sequence, list[Block]]
        ] = {}  # by sequence number; blocks of its first pages
        # Hides the ids inside the keys' hashes, so that nobody outside can choose prompts that collide in the
        # index.
        self._secret = secrets.randbits(62)
        self._next_id = 1

    # -- numbers ---------------------------------------------------------------------------------------------

    @property
    def cached(self) -> int:
        return len(self._lru)

    @property
    def free(self) -> int:
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def room(self, reach: int = 0) -> int:
        """Pages that can be handed out now, cached ones evicted, to a sequence with that `reach` (see
        `grow`).
        """
        return max(self.limit, reach) - self.used

    def private(self, seq: Sequence) -> int:
        """Pages that only this sequence uses."""
        refs = self._refs
        return sum(1 for page in seq.pages if refs[page] == 1)

    # -- the life of a block table ---------------------------------------------------------------------------

    def match(self, tokens: list[int], chain: list[Block] | None = None) -> list[Block]:
        """The longest cached prefix of `tokens`, as blocks. Counts nothing and holds nothing.

        At least one token is left to compute, because a step needs a query to produce logits from. `chain` is
        an earlier answer for the same tokens: it is brought up to date in place, at the cost of what changed
        since.
        """
        chain = [] if chain is None else chain
        while (
            chain and not chain[-1].pages
        ):  # blocks die from the end of a chain, so the first live one ends the search
            chain.pop()
        if not self.prefix:
            return chain
        size, index = self.page_size, self._index
        parent = chain[-1].id if chain else self._secret
        for start in range(len(chain) * size, (len(tokens) - 1) // size * size, size):
            block = index.get((parent, True, *tokens[start : start + size]))
            if block is None and not self.predicted:
                block = index.get((parent, False, *tokens[start : start + size]))
            if block is None:
                break
            chain.append(block)
            parent = block.id
        return chain

    def idle(self, chain: list[Block]) -> int:
        """How many of the chain's blocks are cached but unused: sharing them takes as many pages out of the
        room.
        """
        refs = self._refs
        return sum(1 for block in chain if not refs[block.pages[0]])

    def open(self, seq: Sequence, chain: list[Block]) -> None:
        """Begin the table of `seq` on the pages of a matched chain, which must be up to date."""
        if seq.number in self._tables or seq.pages:
            raise PageAccountingError(f"sequence {seq.number} has a block table already")
        for block in chain:
            page = block.pages[0]
            if not self._refs[page]:
                del self._lru[page]
                self.used += 1
            self._refs[page] += 1
            seq.pages.append(page)
        seq.computed = len(chain) * self.page_size
        seq.predicted = sum(1 for block in chain if block.predicted) * self.page_size
        self._tables[seq.number] = (seq, list(chain))

    def covers(self, seq: Sequence) -> bool:
        """Whether `grow` would give every token of `seq` a place and take no page for it, as for most decode rows."""
        return self.used <= self.limit and len(seq.tokens) <= len(seq.pages) * self.page_size

    def grow(self, seq: Sequence, tokens: int, reach: int = 0) -> bool:
        """Let the table of `seq` cover `tokens` tokens: all the pages it lacks, or none and False.

        A sequence admitted under a larger cap passes that as `reach`: lowering the cap does not stop running
        work.
        """
        lacking = self.pages_for(tokens) - len(seq.pages)
        if lacking > self.room(reach):
            return False
        for _ in range(lacking):
            seq.pages.append(self._take())
        return True

    def register(self, seq: Sequence) -> None:
        """Make the full pages of seq.tokens[:computed] findable. Call it once the step that computed them is
        done.
        """
        if not self.prefix:
            return
        _, chain = self._tables[seq.number]
        size = self.page_size
        for i in range(len(chain), seq.computed // size):
            parent = chain[-1] if chain else None
            predicted = seq.predicted >= (i + 1) * size
            key = (parent.id if parent else self._secret, predicted, *seq.tokens[i * size : (i + 1) * size])
            block = self._index.get(key)
            if block is None:
                block = self._index[key] = Block(self._next_id ^ self._secret, key, parent)
                self._next_id += 1
            self._join(block, seq.pages[i])
            chain.append(block)

    def close(self, seq: Sequence) -> None:
        """Give back all pages of `seq`; what is findable stays cached."""
        del self._tables[seq.number]
        for page in reversed(seq.pages):  # children enter the eviction order before their parents
            self._refs[page] -= 1
            if not self._refs[page]:
                self.used -= 1
                self._retire(page)
        seq.pages.clear()
        seq.computed = seq.predicted = 0
        seq.drafts = ()
        self._trim()

    # -- operation -------------------------------------------------------------------------------------------

    def set_cap(self, cap: int | None) -> None:
        """Bound the pages used and cached together. Cached pages above it go now, used ones when their
        sequences end.
        """
        self.limit = self.total if cap is None else min(cap, self.total)
        self._trim()

    def set_prefix(self, enabled: bool) -> None:
        """Turn the prefix cache on or off. Off forgets everything; on, running sequences register what they
        have.
        """
        if self.prefix and not enabled:
            self.flush()
            for block in self._index.values():
                for page in block.pages:
                    self._blocks[page] = None
                block.pages.clear()
            self._index.clear()
            for _, chain in self._tables.values():
                chain.clear()
        self.prefix = enabled

    def distrust(self, seq: Sequence) -> list[int]:
        """Forget the whole prefix cache, because blocks may stand on what `seq` computed. Gives the pages that only
        `seq` uses.
        """
        if self.prefix:
            self.set_prefix(False)
            self.set_prefix(True)
        return [page for page in seq.pages if self._refs[page] == 1]

    def flush(self) -> Flush:
        """Drop every cached page that no sequence uses."""
        dropped = len(self._lru)
        while self._lru:
            self._evict()
        kept = sum(len(block.pages) for block in self._index.values())
        holders = sum(1 for _, chain in self._tables.values() if chain)
        return Flush(dropped, kept, f"in use by {holders} running sequences" if kept else None)

    def check(self) -> None:
        """Raise PageAccountingError unless every page is accounted for exactly once. O(pages): for tests and
        idle time.
        """
        refs = [0] * self.total
        for seq, _ in self._tables.values():
            for page in seq.pages:
                refs[page] += 1
        _require(refs == self._refs, "reference counts differ from the block tables")
        used = {page for page, count in enumerate(refs) if count}
        _require(len(used) == self.used, f"{len(used)} pages are in tables and {self.used} are counted")
        parts = [*used, *self._lru, *self._free]
        _require(
            sorted(parts) == list(range(self.total)),
            "used, cached and free pages are not all pages, once each",
        )
        _require(
            not self._lru or self.used + self.cached <= self.limit, "cached pages are held above the cap"
        )
        _require(all(self._blocks[page] for page in self._lru), "a cached page cannot be found")
        _require(not any(self._blocks[page] for page in self._free), "a free page can be found")
        filed = sum(len(block.pages) for block in self._index.values())
        _require(filed == sum(1 for block in self._blocks if block), "a page holds a block that is not filed")
        for complaint in self._contradictions():
            raise PageAccountingError(complaint)

    # -- inside ----------------------------------------------------------------------------------------------

    def _take(self) -> int:
        if self._lru and (not self._free or self.used + len(self._lru) >= self.limit):
            self._evict()
        page = self._free.pop()
        self._refs[page] = 1
        self.used += 1
        return page

    def _retire(self, page: int) -> None:
        """A page nobody uses any more: cached if it is the last of its block, else free."""
        block = self._blocks[page]
        if block is not None and len(block.pages) == 1:
            self._lru[page] = None
            return
        if block is not None:
            block.pages.remove(page)
            self._blocks[page] = None
        self._free.append(page)

    def _join(self, block: Block, page: int) -> None:
        """`page`, in use, holds `block`. An unused copy is freed: the copy in use will outlive it in the
        cache.
        """
        if self._blocks[page] is block:
            return  # shared, and another of its sequences has said so (after the prefix cache was off and on)
        if block.pages and not self._refs[block.pages[0]]:
            unused = block.pages.pop()
            del self._lru[unused]
            self._blocks[unused] = None
            self._free.append(unused)
        block.pages.append(page)
        self._blocks[page] = block

    def _evict(self) -> None:
        page, _ = self._lru.popitem(last=False)
        block = self._blocks[page]
        assert block is not None
        block.pages.clear()
        del self._index[block.key]
        self._blocks[page] = None
        self._free.append(page)

    def _trim(self) -> None:
        while self._lru and self.used + len(self._lru) > self.limit:
            self._evict()

    def _contradictions(self) -> Iterator[str]:
        for key, block in self._index.items():
            parent_id = block.parent.id if block.parent else self._secret
            if key != block.key or key[0] != parent_id:
                yield f"block {block.id} is filed under another key than its own"
            if not block.pages or (block.parent and not block.parent.pages):
                yield f"block {block.id} or its parent has no page"
            if block.predicted and block.parent and not block.parent.predicted:
                yield f"block {block.id} has predictions and stands on one without"
            if any(self._blocks[page] is not block for page in block.pages):
                yield f"block {block.id} names a page that names another block"
            if len(block.pages) > 1 and not all(self._refs[page] for page in block.pages):
                yield f"block {block.id} has an unused copy"
        for seq, chain in self._tables.values():
            if len(chain) * self.page_size > seq.computed:
                yield f"sequence {seq.number} shares a page that is still being written"
            if sum(block.predicted for block in chain) * self.page_size > seq.predicted:
                yield f"sequence {seq.number} shares predictions that are still being written"
            for i, block in enumerate(chain):
                if self._blocks[seq.pages[i]] is not block:
                    yield f"sequence {seq.number}, page {i}: the page holds another block"
                elif list(block.key[2:]) != seq.tokens[i * self.page_size : (i + 1) * self.page_size]:
                    yield f"sequence {seq.number}, page {i}: the block holds other tokens"


def _require(condition: bool, complaint: str) -> None:
    if not condition:
        raise PageAccountingError(complaint)
