"""Moves tiles of contraction operands into shared memory (`emmy.codegen.families.tiles` says what they are).

`issue` starts the copies of a tile and `finish` completes them: of synchronous ones the raw chunks are read into
registers by the first, computed and stored by the second.  Nothing is left to do for tiles that TMA brings but to
gather statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from emmy.codegen.expr import (
    TID,
    Code,
    add,
    both,
    convert,
    div,
    elem,
    i32,
    lt,
    mod,
    mul,
    negate,
    select,
    shared_at,
)
from emmy.codegen.families.boxes import tile_at
from emmy.codegen.families.frame import Env, Frame, Known, clamp, static
from emmy.codegen.families.statistics import Statistics
from emmy.codegen.families.tiles import Tile
from emmy.codegen.families.windows import Window, window
from emmy.ir.dtype import DTYPES, register
from emmy.ir.kernel import AsyncCopy, Bin, If, Lit, LoadVector, StoreVector, Var, X
from emmy.ir.loop import Ax, Expr, Load
from emmy.ir.views.access import gathered_load, whole_chunks
from emmy.ir.views.affine import Affine, merged_stride
from emmy.ir.views.product import outside_folds

Rows = Callable[[Code, X], Known]
SINGLY = 8  # neighbours in global memory that lanes copy one by one: a sector of 32 bytes


class Stager:
    """Emits the copies of one tile.  `own0` is the first own index of the block, `batch` the batch axes' values.

    Past the end of k a tile holds zeros; past the end of own it holds anything, zeros with `zero_own`.  `statistics`
    see every element that is staged.
    """

    statistics: Statistics | None = None

    def __init__(
        self, frame: Frame, tile: Tile, threads: int, own0: X, batch: Env, scalars: Rows, zero_own: bool = False
    ) -> None:
        self.f, self.t, self.threads = frame, tile, threads
        self.own0, self.batch, self.scalars = own0, batch, scalars
        self.zero_own = zero_own
        self.own_total, self.k_total = frame.total(tile.own), frame.total(tile.k)
        self.own_fits = self._fits(self.own_total, tile.rows)
        self.k_fits = self._fits(self.k_total, tile.depth)
        along, lines = (tile.depth, tile.rows) if tile.run == "k" else (tile.rows, tile.depth)
        # what is turned on its way moves element by element
        singly = tile.transport == "async" and tile.layout != tile.run
        chunk = 1 if singly else 16 // DTYPES[tile.dtype].bytes
        while along % chunk:
            chunk //= 2
        self.patch = _patch(tile, threads) if singly else None
        self.chunk, self.per_line, self.lines = chunk, along // chunk, lines
        self.chunks = self.per_line * lines
        self.rounds = -(-self.chunks // threads)
        self.buffer = tile.buffer
        self.raw: dict[Load, tuple[Var, int]] = {}
        self.windows: dict[Load, Window] = {}
        self.rows: Var | None = None
        self.apart: tuple[int, int] | None = None
        self.start: X = i32(0)

    @staticmethod
    def _fits(total: X, tile: int) -> bool:
        n = static(total)
        return n is not None and n % tile == 0

    @property
    def steady(self) -> bool:
        """True when a thread moves chunks of the same rows in every tile, and the threads of a row are neighbours."""
        n = self.per_line
        return self.t.run == "k" == self.t.layout and self.threads % n == 0 and n <= 32 and n & (n - 1) == 0

    # -- where thread and round are

    def _where(self, i: X) -> tuple[X, X, X | None]:
        """(line, first element along the run, guard) of the thread's chunk in round i."""
        if self.patch is not None:
            return self._where_singly(self.patch, i)
        id = add(TID, mul(i, self.threads))
        guard = None if self.chunks % self.threads == 0 else lt(id, self.chunks)
        if self.t.layout == self.t.run and self.threads % self.per_line == 0:
            line = add(div(TID, self.per_line), mul(i, self.threads // self.per_line))
            return line, mul(mod(TID, self.per_line), self.chunk), guard
        if self.t.layout == self.t.run:
            return div(id, self.per_line), mul(mod(id, self.per_line), self.chunk), guard
        return mod(id, self.lines), mul(div(id, self.lines), self.chunk), guard

    def _where_singly(self, patch: tuple[int, int], i: X) -> tuple[X, X, X | None]:
        """The same of a single element: eight neighbours of four lines a warp, a patch of elements a round."""
        lines, across = patch
        if lines:
            r, q = self._round(i)
            line = add(mod(div(TID, SINGLY), lines), mul(r, lines))
            first = add(mul(div(TID, SINGLY * lines), SINGLY), mod(TID, SINGLY), mul(q, across))
            return line, first, None
        id = add(TID, mul(i, self.threads))
        guard = None if self.chunks % self.threads == 0 else lt(id, self.chunks)
        first = add(mul(div(id, across * self.lines), across), mod(id, across))
        return mod(div(id, across), self.lines), first, guard

    def _round(self, i: X) -> tuple[X, X]:
        """Of round i which lines, and which elements of them."""
        if self.patch is None or not self.patch[0]:
            return i, i32(0)
        rounds = self.lines // self.patch[0]
        return mod(i, rounds), div(i, rounds)

    def _indices(self, line: X, first: X, k0: X) -> tuple[X, X]:
        """Linear (own, k) of the chunk's first element."""
        if self.t.run == "k":
            return add(self.own0, line), add(k0, first)
        return add(self.own0, first), add(k0, line)

    # -- set-up before the loop over k

    def setup(self, code: Code) -> None:
        if self.statistics is not None:
            self.statistics.declare(code, self.rounds)
        if self.t.transport == "async":
            self._setup_async(code)
        if self.t.transport != "sync":
            return
        run = self.t.k if self.t.run == "k" else self.t.own
        whole = whole_chunks(run, self.chunk)
        for node in self.t.part.loads:
            # a load that a condition guards is read where the condition holds only
            if not self.f.readable(node, self.t.part.value):
                continue
            if whole and gathered_load(node, self.f.body, run, self.chunk):
                array = code.declare(f"{self.t.name}_raw", node.dtype, count=self.rounds * self.chunk)
                self.raw[node] = (array, DTYPES[node.dtype].bytes * self.chunk)
            elif self.t.shifts:
                found = window(self.f, node, run, self.chunk, self.rounds, code, self.t.name)
                if found is not None:
                    self.windows[node] = found

    def _setup_async(self, code: Code) -> None:
        """The offset that stays while k advances: of round 0 where rounds lie a constant apart, else of each."""
        node = self.t.part.single
        assert node is not None
        form = self.f.gathered(node)
        type = "i64" if self.f.wide(node.slot) else "i32"
        self.apart = self._apart(form)
        count = self.rounds if self.apart is None else 1
        self.rows = code.declare(f"{self.t.name}_base", type, count=count)
        rest = [a for a, _ in form.strides if a not in self.t.k]
        with code.loop("i", count, unroll=0) as (c, i):
            line, first, _ = self._where(i)
            own, _ = self._indices(line, first, i32(0))
            env = {**self.batch, **self.f.decode(own, self.t.own)}
            picked = self.f.data(c, form, self.batch, node.slot)
            c.assign(elem(self.rows, i), add(self.f.offset(form, env, node.slot, rest), picked))

    def _apart(self, form: Affine) -> tuple[int, int] | None:
        """Elements of the operand between a thread's chunks, across lines and along them, where these are numbers."""
        if self.patch is not None:
            steps = merged_stride(form, self.t.own), merged_stride(form, self.t.k)
            found = [None if s is None else static(self.f.count(s)) for s in steps]
            lines, across = self.patch
            if not lines or found[0] is None or found[1] is None:
                return None
            return found[0] * lines, found[1] * across
        if self.t.layout != self.t.run or self.threads % self.per_line:
            return None
        stride = merged_stride(form, self.t.own if self.t.run == "k" else self.t.k)
        n = None if stride is None else static(self.f.count(stride))
        return None if n is None else (n * (self.threads // self.per_line), 0)

    # -- the copies

    def issue(self, code: Code, slot: X, k0: X) -> None:
        """Start moving the tile that begins at k0 into ring buffer `slot`."""
        if self.t.transport == "async":
            self._issue_async(code, slot, k0)
        elif self.windows:
            with code.when(negate(self._ends(k0))) as c:
                self._issue_raw(c, k0)
        elif self.raw:
            self._issue_raw(code, k0)

    def finish(self, code: Code, slot: X, k0: X) -> None:
        """Complete the tile that `issue` started (nothing to do for asynchronous copies)."""
        if self.t.transport == "sync":
            self._finish_sync(code, slot, k0)

    def _issue_async(self, code: Code, slot: X, k0: X) -> None:
        self.advance(code, k0)
        with code.loop("i", self.rounds, unroll=0) as (c, i):
            self._copy(c, slot, k0, i, None)

    def advance(self, code: Code, k0: X) -> None:
        """Where the asynchronous copies of the tile that begins at k0 start, if rounds lie a constant apart."""
        if self.apart is None:
            return
        assert self.rows is not None
        line, first, _ = self._where(i32(0))
        _, k = self._indices(line, first, k0)
        self.start = code.let(f"{self.t.name}_start", add(elem(self.rows, 0), self._along(k, self.rows.type)))

    def issue_share(self, code: Code, slot: X, k0: X, more: X, share: X, shares: int, least: int = 1) -> None:
        """One of `shares` equal parts of the asynchronous copies, each of at least `least` while there are any.

        Zeros arrive where `more` is false.
        """
        each = max(-(-self.rounds // shares), min(least, self.rounds))
        with code.loop("i", each, unroll=0) as (outer, r):
            i = add(mul(share, each), r)
            with outer.when(None if each * shares == self.rounds else lt(i, self.rounds)) as c:
                self._copy(c, slot, k0, i, more)

    def _along(self, k: X, type: str) -> X:
        """The part of the plain operand's offset that the summed index makes."""
        node = self.t.part.single
        assert node is not None
        form = self.f.gathered(node)
        stride = merged_stride(form, self.t.k)
        if stride is not None:
            return mul(convert(k, type), convert(self.f.count(stride), type))
        return self.f.offset(form, self.f.decode(k, self.t.k), node.slot, self.t.k, base=False)

    def _copy(self, code: Code, slot: X, k0: X, i: X, more: X | None) -> None:
        node = self.t.part.single
        assert node is not None and self.rows is not None
        line, first, guard = self._where(i)
        own, k = self._indices(line, first, k0)
        with code.when(guard) as c:
            if self.apart is not None:
                r, q = self._round(i)
                beyond = add(mul(r, self.apart[0]), mul(q, self.apart[1]))
                start = add(self.start, convert(beyond, self.start.type))
            else:
                start = add(elem(self.rows, i), self._along(k, self.rows.type))
            inside = both(
                None if self.own_fits else lt(own, self.own_total), None if self.k_fits else lt(k, self.k_total)
            )
            dst = shared_at(self.buffer, slot, *((line, first) if self.patch is None else (first, line)))
            bytes = self.chunk * DTYPES[self.t.dtype].bytes
            c.emit(AsyncCopy(dst, self.f.at(node.slot, start), bytes, both(more, inside)))

    def _start(self, line: X, first: X, k0: X) -> tuple[X, X]:
        """Linear (own, k) of the chunk, moved inside the operand where it lies outside."""
        own, k = self._indices(line, first, k0)
        if not self.own_fits:
            own = self._inside(own, self.own_total, self.t.run == "own")
        if not self.k_fits:
            k = self._inside(k, self.k_total, self.t.run == "k")
        return own, k

    def _inside(self, index: X, total: X, runs: bool) -> X:
        """Whole chunks move as one: they lie inside, or the last one is read in their place."""
        if not runs:
            return clamp(index, total)
        return select(lt(index, total), index, add(total, -self.chunk))

    def _inner(self, line: X, first: X, k0: X) -> dict[Ax, X]:
        """The point of a chunk's first element, or the last one inside."""
        own, k = self._indices(line, first, k0)
        own = own if self.own_fits else clamp(own, self.own_total)
        return self._env(own, k if self.k_fits else clamp(k, self.k_total))

    def _env(self, own: X, k: X) -> dict[Ax, X]:
        return {**self.batch, **self.f.decode(own, self.t.own), **self.f.decode(k, self.t.k)}

    def _issue_raw(self, code: Code, k0: X) -> None:
        with code.loop("i", self.rounds, unroll=0) as (outer, i):
            line, first, guard = self._where(i)
            with outer.when(guard) as c:
                for w in self.windows.values():
                    w.read(c, i, self._inner(line, first, k0))
                own, k = self._start(line, first, k0)
                env = self._env(own, k)
                for node, (array, bytes) in self.raw.items():
                    form = self.f.gathered(node)
                    picked = self.f.data(c, form, env, node.slot)
                    start = c.let(f"{self.t.name}_at", add(self.f.offset(form, env, node.slot), picked))
                    piece = self.chunk if bytes <= 16 else self.chunk * 16 // bytes
                    for p in range(0, self.chunk, piece):
                        place = self.f.at(node.slot, add(start, p))
                        c.emit(LoadVector(array.name, add(mul(i, self.chunk), p), piece, place))

    def gather(self, code: Code, slot: X, k0: X) -> None:
        """Show the statistics this thread's chunks of a tile that came past the registers."""
        node = self.t.part.single
        if self.statistics is None or self.t.transport == "sync":
            return
        assert node is not None
        with code.loop("i", self.rounds, unroll=0) as (outer, i):
            line, first, guard = self._where(i)
            with outer.when(guard) as c:
                chunk = c.declare(f"{self.t.name}_chunk", self.t.dtype, count=self.chunk)
                c.emit(LoadVector(chunk.name, i32(0), self.chunk, tile_at(self.buffer, slot, line, first)))
                own, k = self._start(line, first, k0)
                env = self._env(own, k)
                for e in range(self.chunk):
                    point = {**env, self.t.k[-1]: add(env[self.t.k[-1]], e)}
                    held: dict[Expr, X] = {node: convert(elem(chunk, e), register(node.dtype))}
                    inside = None if self.k_fits else lt(add(k0, first, e), self.k_total)
                    self.statistics.take(c, i, point, held, inside)

    def settle(self, code: Code) -> None:
        """After the last tile: the statistics of the block's rows."""
        if self.statistics is not None:
            n, whole = self.per_line, self.rounds * self.threads == self.per_line * self.lines
            self.statistics.finish(
                code, self.rounds, n, lambda i: add(div(TID, n), mul(i, self.threads // n)),
                lambda line: None if whole else lt(line, self.lines),
            )  # fmt: skip

    def _finish_sync(self, code: Code, slot: X, k0: X) -> None:
        if not self.windows:
            self._rounds(code, slot, k0, True)
            return
        fast, slow = Code(code.names), Code(code.names)
        self._rounds(slow, slot, k0, False)
        self._rounds(fast, slot, k0, True)
        code.emit(If(self._ends(k0), tuple(slow.statements), tuple(fast.statements)))

    def _ends(self, k0: X) -> X:
        """True where a chunk of the thread reaches behind the last whole vector of its operand."""
        found: X = Lit(False, "bool")
        lines = self.t.own if self.t.run == "k" else self.t.k
        # else a later round of the thread may begin earlier in the lines
        even = self.threads % (self.per_line if self.t.layout == self.t.run else self.lines) == 0
        for w in self.windows.values():
            # of lines that lie behind each other the last one ends last
            stride = merged_stride(w.form, lines)
            step = None if stride is None else static(self.f.count(stride))
            ordered = even and step is not None and step >= 0
            for i in range(self.rounds - 1 if ordered else 0, self.rounds):
                line, first, _ = self._where(i32(i))
                one = w.ends(self._inner(line, first, k0))
                found = one if isinstance(found, Lit) else Bin("||", found, one, "bool")
        return found

    def _rounds(self, code: Code, slot: X, k0: X, held: bool) -> None:
        """Compute and store the thread's chunks, of what has been read (`held`) or reading by single elements."""
        packed = code.declare(f"{self.t.name}_pack", self.t.dtype, count=self.chunk)
        # nothing but statistics and what is held lies in registers
        unroll = 0 if held or self.statistics is not None else -1
        with code.loop("i", self.rounds, unroll=unroll) as (outer, i):
            line, first, guard = self._where(i)
            with outer.when(guard) as c:
                chunks = self._chunks(c, i, line, first, k0) if held else {}
                plain = self.t.part.single
                if plain in chunks and plain is not None and plain.dtype == self.t.dtype and self.statistics is None:
                    self._blank(c, packed, *chunks[plain], line, first, k0)
                else:
                    self._compute(c, packed, i, line, first, k0, chunks)
                self._store(c, packed, slot, line, first)

    def _there(self, line: X) -> X | None:
        """Whether the tile's line is one of the operand's, where every block has lines that are none.

        Arithmetic on them would be most of a decode step's work; where only the last block has some it does not pay.
        """
        n = static(self.own_total)
        few = self.t.run == "k" and n is not None and n < self.t.rows
        return lt(add(self.own0, line), self.own_total) if few else None

    def _chunks(self, c: Code, i: X, line: X, first: X, k0: X) -> dict[Load, tuple[Var, X]]:
        """Register arrays that hold the chunk of round i, and where in them it begins."""
        found = {node: (array, mul(i, self.chunk)) for node, (array, _) in self.raw.items()}
        for node, w in self.windows.items():
            found[node] = (w.shift(c, i, self._inner(line, first, k0)), i32(0))
        return found

    def _blank(self, c: Code, packed: Var, array: Var, at: X, line: X, first: X, k0: X) -> None:
        """The chunk as it is, with zeros past the end of k (and, where asked for, of own)."""
        for e in range(self.chunk):
            c.assign(elem(packed, e), elem(array, add(at, e)))
        ragged = [] if self.k_fits else [lt(self.k_total, add(k0, self.t.depth))]
        if not self.own_fits and self.zero_own:
            ragged.append(lt(self.own_total, add(self.own0, self.t.rows)))
        for condition in ragged:
            with c.when(condition) as end:
                for e in range(self.chunk):
                    inside = self._within(line, add(first, e), k0)
                    assert inside is not None
                    zero = Lit(0, self.t.dtype)
                    end.assign(elem(packed, e), select(inside, elem(packed, e), zero))

    def _within(self, line: X, first: X, k0: X) -> X | None:
        """True for an element inside, None where all are; own counts with `zero_own` only."""
        own, at = self._indices(line, first, k0)
        return both(
            None if self.k_fits else lt(at, self.k_total),
            None if self.own_fits or not self.zero_own else lt(own, self.own_total),
        )

    def _compute(
        self, c: Code, packed: Var, i: X, line: X, first: X, k0: X, chunks: Mapping[Load, tuple[Var, X]]
    ) -> None:
        """The part's values at the elements of a chunk."""
        whole = whole_chunks(self.t.k if self.t.run == "k" else self.t.own, self.chunk)
        there = self._there(line)
        if there is not None:
            for e in range(self.chunk):
                c.assign(elem(packed, e), Lit(0, packed.type))
        with c.when(there) as some:
            known = self.scalars(some, line) if self.t.run == "k" else None
            for e in range(self.chunk):
                mine = dict(self.scalars(some, add(first, e)) if known is None else known)
                for node, (array, at) in chunks.items():
                    mine[node] = convert(elem(array, add(at, e)), register(node.dtype))
                value = self._element(some, i, line, first, e, k0, whole, mine)
                some.assign(elem(packed, e), convert(value, self.t.dtype))

    def _element(self, c: Code, i: X, line: X, first: X, e: int, k0: X, whole: bool, known: dict[Expr, X]) -> X:
        """The part's value at element e of the chunk; 0 past the end of k.  `known` grows by what is read."""
        runs_k = self.t.run == "k"
        if whole:
            own, k = self._start(line, first, k0)
            env = self._env(own, k)
            last = (self.t.k if runs_k else self.t.own)[-1]
            env[last] = add(env[last], e)
        else:
            own, k = self._indices(line, add(first, e), k0)
            own = own if self.own_fits else clamp(own, self.own_total)
            k = k if self.k_fits else clamp(k, self.k_total)
            env = self._env(own, k)
        if self.statistics is not None:
            within = None if self.k_fits else lt(self._indices(line, add(first, e), k0)[1], self.k_total)
            known.update(self._held(c, env, known))
            self.statistics.take(c, i, env, known, within)
        value = self.f.value(c, self.t.part.value, env, known)
        inside = self._within(line, add(first, e), k0)
        return value if inside is None else select(inside, value, Lit(0.0, value.type))

    def _held(self, c: Code, env: Env, known: Known) -> dict[Expr, X]:
        """The statistics' loads at a point that are not in registers, read once for them and for the part."""
        assert self.statistics is not None
        nodes = dict.fromkeys(n for s in self.statistics.folds for n in outside_folds(s.body) if isinstance(n, Load))
        return {n: self.f.value(c, n, env, {}) for n in nodes if n not in known}

    def _store(self, c: Code, packed: Var, slot: X, line: X, first: X) -> None:
        if self.t.layout == self.t.run:
            place = shared_at(self.buffer, slot, line, first)
            c.emit(StoreVector(place, packed.name, i32(0), self.chunk))
            return
        for e in range(self.chunk):
            c.store(shared_at(self.buffer, slot, add(first, e), line), elem(packed, e))


def _patch(tile: Tile, threads: int) -> tuple[int, int]:
    """Lines and elements along them that single copies of a block take a round; no lines where that does not divide."""
    lines = threads // SINGLY
    while lines > 1 and (tile.rows % lines or threads % (SINGLY * lines) or tile.depth % (threads // lines)):
        lines //= 2
    if threads % SINGLY or tile.rows % lines or threads % lines or tile.depth % (threads // lines):
        return 0, min(SINGLY, tile.depth)
    return lines, threads // lines


def no_scalars(code: Code, row: X) -> Known:
    return {}


__all__ = ["Rows", "Stager", "no_scalars"]
