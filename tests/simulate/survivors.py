"""Mutants that do the same as their kernel for a reason that no automatic proof gives, with that reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from emmy.ir.kernel import AsyncWait, BulkWait, For, If, Kernel, NamedBarrier, bodies, walk
from tests.simulate.edits import Mutant, Path, sites

Holds = Callable[[Kernel, Mutant], bool]


def _of(family: str, pattern: str) -> Holds:
    """A site of a family's kernels (as the kernel's comment says) whose text matches."""
    return lambda kernel, m: kernel.comment.startswith(family) and re.search(pattern, m.site) is not None


def in_loop(kernel: Kernel, path: Path) -> bool:
    """True where a loop is around the statement."""
    body = kernel.body
    for i, k in zip(path[:-1:2], path[1::2], strict=True):
        if isinstance(body[i], For):
            return True
        body = bodies(body[i])[k]
    return False


def _by_copies(kernel: Kernel) -> bool:
    """True when tiles come by cp.async."""
    return any(isinstance(s, AsyncWait) for s in walk(kernel.body))


def _last_release(kernel: Kernel, m: Mutant) -> bool:
    return _of("wgmma", r"if \(tid & 31\) < 1$|arrive free empty|sync warp")(kernel, m) and not in_loop(kernel, m.path)


def bulk_waits(kernel: Kernel) -> list[Path]:
    """Branches that hold nothing but a wait for the thread's own stores by TMA."""
    found = (s for s in sites(kernel) if isinstance(s.statement, If))
    return [s.path for s in found if all(isinstance(i, BulkWait) for i in s.statement.then)]  # type: ignore[union-attr]


def _tiled(pattern: str) -> Holds:
    """A site of kernels that carry tiles by hand."""
    return lambda kernel, m: _of("mma", pattern)(kernel, m) or _of("tile", pattern)(kernel, m)


# the condition under which a thread reads its chunks by single elements: the operand's last vector, before its own
_ENDS: Final = _tiled(r": if (?:(?!tid).)*? < \(.*tid")
SINGLE: Final = (
    "More threads read single elements, which is right everywhere, and no chunk of that tile reaches the end."
)
LAST: Final = "The release of the last tile: nobody waits for its place in the ring again."
_LAST_FENCE: Final = (
    lambda kernel, m: _of("wgmma", r"fence async shared$")(kernel, m) and not in_loop(kernel, m.path),
    LAST,
)
# operator -> (where it holds, why the mutant then does the same)
REASONS: Final[dict[str, tuple[tuple[Holds, str], ...]]] = {
    "loop bound + 1": (
        (
            lambda kernel, m: _of("tile", r"unrolled$")(kernel, m) and not in_loop(kernel, m.path),
            "The copies of the first tile run over into the next slot of the ring, whose own copies come later.",
        ),
        (
            lambda kernel, m: _of("mma", r"for t in \d+\.\.\d+$")(kernel, m) and _by_copies(kernel),
            "One more turn multiplies the tile behind the last, which was asked for in time and came as zeros.",
        ),
        (
            lambda kernel, m: _of("wgmma", r"for piece in 0\.\.pieces$")(kernel, m) and m.path[1] == 0,
            "The producer's loop: of a piece behind the block's share there are no stages to bring.",
        ),
    ),
    "loop bound - 1": (
        (
            _tiled(r" rolled$"),
            "The thread's last chunk is of a row behind the operand's last one: no result depends on it.",
        ),
    ),
    "stride + 1": ((_ENDS, SINGLE),),
    "arms of a choice swapped": ((_ENDS, SINGLE),),
    "comparison off by one": (
        (_ENDS, SINGLE),
        (_last_release, LAST),
        (
            _of("map", r"if \(\(\(q - tid\) >> \d+\) == \d+\) && \(tid == \d+\)$"),
            "The elements after the last whole vector are taken by one thread. With `!=` in the block's condition, and "
            "two blocks in the grid, it is the same thread of the other block: still one, and what it takes depends on "
            "no index of its own.",
        ),
    ),
    "guard inverted": (
        (_ENDS, SINGLE),
        (
            _of("row", r"if rank == 0$"),
            "Two threads share the row and both hold its sum: the other one stores it.",
        ),
        (
            _of("wgmma", r"m_scalar\d+\[.* = total  where \(tid & 1\) < 1$"),
            "Two threads share the row and both hold its sum: the other one stores it.",
        ),
        (
            _last_release,
            LAST,
        ),
    ),
    "wrong start of an accumulator": (
        (
            _of("attention", r"score\[\d+\] = 0$|acc\d* = 0$"),
            "All scores grow by one number, which softmax does not see.",
        ),
        (
            _of("attention", r"sum(\[\d+\])? = 0$"),
            "The sum is scaled by exp(-infinity - maximum) = 0 before the first key's weights are added.",
        ),
    ),
    "shuffle lane": (
        (
            _of("", r"xor"),
            "A sum over lanes by exchanges with lane ^ 16, ^ 8, .. ^ 1: the masks with one of them changed by 1 still "
            "span all lanes, so that each lane is added once, in another order.",
        ),
    ),
    "ring arrive dropped": ((_last_release, LAST),),
    "proxy fence dropped": (_LAST_FENCE,),
    "proxy fence behind the release": (_LAST_FENCE,),
    "warp sync dropped": ((_last_release, LAST),),
    "arrived twice": ((_last_release, LAST),),
    "guard dropped": (
        (
            lambda kernel, m: m.path in bulk_waits(kernel),
            "Threads that have sent no box wait for none.",
        ),
        (_last_release, LAST),
        (
            _of("", r"if \(t \+ \d+\) < |if more$"),
            "A tile behind the last one is fetched, too: its loads are masked, and its place is never read.",
        ),
    ),
    "overlay added": (
        (
            lambda kernel, m: kernel.comment.startswith("tile") and m.site.startswith("partial over"),
            "The groups' sums lie over a slot of the ring that nothing reads after the last tile.",
        ),
        (
            lambda kernel, m: kernel.threads == 256 and m.site == "sum0_tile over b_tile",
            "One group of consumers, which waits for all of its products before it stores what the cluster will "
            "read: by then nothing reads the ring, and no box is on its way to it.",
        ),
    ),
    "named barrier dropped": (
        (
            lambda kernel, m: kernel.threads == 256 and m.site.endswith("sync 4 of 128"),
            "One group of consumers: its products are done for all of its warps when one of them has waited, as the "
            "simulator takes it. The barrier keeps deposits off the ring where each warp's part ended by itself.",
        ),
    ),
    "another named barrier": (
        (
            lambda kernel, m: sum(isinstance(n, NamedBarrier) for n in walk(kernel.body)) == 1,
            "The kernel's only named barrier: its groups still have a number each.",
        ),
        (
            lambda kernel, m: kernel.threads == 256,
            "One group of consumers: no other barrier has that number.",
        ),
    ),
    "wgmma fence dropped": (
        (
            lambda kernel, m: len(m.path) > 4,
            "In the loop over tiles. The first products have a fence of their own before the loop, and nothing but "
            "wgmma touches the accumulators in it: PTX asks for a fence before the first wgmma and after other uses.",
        ),
    ),
}


def reason(operator: str, kernel: Kernel, m: Mutant) -> str:
    """Why the mutant does the same; empty where nothing is known."""
    return next((why for holds, why in REASONS.get(operator, ()) if holds(kernel, m)), "")
