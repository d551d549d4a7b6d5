"""Device functions that move tiles and synchronize: cp.async, mbarriers, TMA, barriers of part of a block and more.

Sources: PTX ISA manual, "Parallel Synchronization and Communication Instructions" and "Data Movement and Conversion
Instructions: Asynchronous copy".
"""

from __future__ import annotations

from typing import Final

_F = "static __device__ __forceinline__"


def _plain(name: str, instruction: str, clobber: str = '::: "memory"') -> str:
    return f'{_F} void {name}() {{ asm volatile("{instruction}" {clobber}); }}'


def _coordinates(rank: int) -> tuple[str, str]:
    """Parameters and asm operands of a box's first element, innermost dimension first."""
    names = [f"x{k}" for k in range(rank)]
    return ", ".join(f"int {n}" for n in names), ", ".join(f'"r"({n})' for n in names)


def _tma_load(rank: int, multicast: bool) -> str:
    parameters, operands = _coordinates(rank)
    at = ", ".join(f"%{3 + k}" for k in range(rank))
    name = f"tma_load_{rank}d{'_multicast' if multicast else ''}"
    mask = ", unsigned blocks" if multicast else ""
    suffix = ".multicast::cluster" if multicast else ""
    given = ', "h"((unsigned short)blocks)' if multicast else ""
    return f"""{_F} void {name}(
    void* d, const TensorMap* map, unsigned long long* full, {parameters}{mask}) {{
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{suffix} "
                 "[%0], [%1, {{{at}}}], [%2]{f", %{3 + rank}" if multicast else ""};"
                 :: "r"(shared_address(d)), "l"(map), "r"(shared_address(full)), {operands}{given} : "memory");
}}"""


def _tma_store(rank: int, add: bool) -> str:
    parameters, operands = _coordinates(rank)
    at = ", ".join(f"%{2 + k}" for k in range(rank))
    name = f"tma_{'add' if add else 'store'}_{rank}d"
    what = (
        f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.bulk_group"
        if add
        else (f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group")
    )
    return f"""{_F} void {name}(const TensorMap* map, {parameters}, const void* s) {{
    asm volatile("{what} [%0, {{{at}}}], [%1];"
                 :: "l"(map), "r"(shared_address(s)), {operands} : "memory");
}}"""


_RANKS: Final = range(1, 6)
_TMA: Final = {
    **{f"tma_load_{r}d": _tma_load(r, False) for r in _RANKS},
    **{f"tma_load_{r}d_multicast": _tma_load(r, True) for r in _RANKS},
    **{f"tma_store_{r}d": _tma_store(r, False) for r in _RANKS},
    **{f"tma_add_{r}d": _tma_store(r, True) for r in _RANKS},
}
_COPIES: Final[dict[str, str]] = {
    "async_copy4": f"""{_F} void async_copy4(void* d, const void* s, bool full) {{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"((unsigned)__cvta_generic_to_shared(d)), "l"(s), "r"(full ? 4 : 0) : "memory");
}}""",
    "async_copy8": f"""{_F} void async_copy8(void* d, const void* s, bool full) {{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :: "r"((unsigned)__cvta_generic_to_shared(d)), "l"(s), "r"(full ? 8 : 0) : "memory");
}}""",
    "async_copy16": f"""{_F} void async_copy16(void* d, const void* s, bool full) {{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((unsigned)__cvta_generic_to_shared(d)), "l"(s), "r"(full ? 16 : 0) : "memory");
}}""",
    "async_commit": f'{_F} void async_commit() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}',
    "async_wait": """template <int N> static __device__ __forceinline__ void async_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}""",
}
_RINGS: Final[dict[str, str]] = {
    "of_block": """template <class T> static __device__ __forceinline__ T* of_block(T* p, int rank) {
    T* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
    return there;
}""",
    "shared_address": f"""{_F} unsigned shared_address(const void* p) {{
    return (unsigned)__cvta_generic_to_shared(p);
}}""",
    # `depth` full barriers, then as many empty ones
    "ring_init": f"""{_F} void ring_init(unsigned long long* ring, int depth, unsigned full, unsigned empty) {{
    for (int k = 0; k < 2 * depth; ++k)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                     :: "r"(shared_address(ring + k)), "r"(k < depth ? full : empty) : "memory");
}}""",
    "ring_fence": f"""{_F} void ring_fence() {{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}}""",
    "ring_step": """template <int depth> static __device__ __forceinline__ void ring_step(int& slot, unsigned& parity) {
    if (++slot == depth) {
        slot = 0;
        parity ^= 1u;
    }
}""",
    "ring_skip": """template <int depth>
static __device__ __forceinline__ void ring_skip(int& slot, unsigned& parity, int by) {
    const unsigned to = (unsigned)(slot + by);
    parity ^= to / depth & 1u;
    slot = (int)(to % depth);
}""",
    "ring_wait": f"""{_F} void ring_wait(unsigned long long* barrier, unsigned parity) {{
    unsigned done;
    do {{
        asm volatile("{{\\n\\t.reg .pred p;\\n\\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n\\t"
                     "selp.u32 %0, 1, 0, p;\\n\\t}}"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    }} while (!done);
}}""",
    "ring_arrive": f"""{_F} void ring_arrive(unsigned long long* barrier) {{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(barrier)) : "memory");
}}""",
    "ring_expect": f"""{_F} void ring_expect(unsigned long long* barrier, unsigned bytes) {{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}}""",
    # not qualified as .release.cluster: that puts a fence of the whole GPU before each arrival
    "ring_arrive_at": f"""{_F} void ring_arrive_at(unsigned long long* barrier, unsigned rank) {{
    asm volatile("{{\\n\\t.reg .b32 there;\\n\\t"
                 "mapa.shared::cluster.u32 there, %0, %1;\\n\\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\\n\\t}}"
                 :: "r"(shared_address(barrier)), "r"(rank) : "memory");
}}""",
    "ring_expect_at": f"""{_F} void ring_expect_at(unsigned long long* barrier, unsigned bytes, unsigned rank) {{
    asm volatile("{{\\n\\t.reg .b32 there;\\n\\t"
                 "mapa.shared::cluster.u32 there, %0, %2;\\n\\t"
                 "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [there], %1;\\n\\t}}"
                 :: "r"(shared_address(barrier)), "r"(bytes), "r"(rank) : "memory");
}}""",
    "ring_arrive_copies": f"""{_F} void ring_arrive_copies(unsigned long long* barrier) {{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(shared_address(barrier)) : "memory");
}}""",
    # of the size and alignment of the driver's CUtensorMap
    "TensorMap": "struct alignas(64) TensorMap { unsigned long long words[16]; };",
    "bulk_commit": _plain("bulk_commit", "cp.async.bulk.commit_group;"),
    "bulk_wait": """template <int N> static __device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(N) : "memory");
}""",
    "bulk_wait_read": """template <int N> static __device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}""",
    "fence_device": _plain("fence_device", "fence.acq_rel.gpu;"),
    "proxy_fence_shared": _plain("proxy_fence_shared", "fence.proxy.async.shared::cta;"),
    "proxy_fence_global": _plain("proxy_fence_global", "fence.proxy.async.global;"),
    "named_sync": f"""{_F} void named_sync(int id, int threads) {{
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}}""",
    "named_arrive": f"""{_F} void named_arrive(int id, int threads) {{
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}}""",
    "cluster_sync": f"""{_F} void cluster_sync() {{
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}}""",
    "cluster_rank": f"""{_F} int cluster_rank() {{
    int r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}}""",
    "registers_down": """template <int N> static __device__ __forceinline__ void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}""",
    "registers_up": """template <int N> static __device__ __forceinline__ void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}""",
    "dependent_launch": _plain("dependent_launch", "griddepcontrol.launch_dependents;"),
    "dependent_wait": _plain("dependent_wait", "griddepcontrol.wait;"),
}
ASYNC: Final[dict[str, str]] = {**_COPIES, **_RINGS, **_TMA}
