"""Kernel IR -> CUDA C++, one to one.  The source needs no header; NVRTC compiles it as it is.

bf16, f16 and f8 are stored as their bits (`unsigned short`, `unsigned char`), bool as `unsigned char`, i64 as
`long long`.  Helper functions (see `cuda_helpers`) are printed only where the kernel uses them.

A ring is an array of mbarriers, those of the full side first; a cursor two registers.  A statement is one line, but
for those that hold others and for what asks the compiler to unroll or the hardware for registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from emmy.codegen.cuda_helpers import HELPERS, used
from emmy.codegen.cuda_matrices import wgmma_helper, wgmma_name
from emmy.codegen.cuda_scalar import CTYPE
from emmy.codegen.cuda_statements import Statements
from emmy.codegen.cuda_values import literal, memory_type
from emmy.ir.kernel import (
    BYTES,
    STATIC_SMEM,
    For,
    If,
    Kernel,
    Lit,
    Param,
    Role,
    Roles,
    S,
    Wgmma,
    walk,
)

__all__ = ["literal", "memory_type", "source"]


def source(kernel: Kernel, helpers: Mapping[str, str] | None = None) -> str:
    """The whole translation unit of one kernel.  `helpers` replaces texts of `cuda_helpers`: for the host, or
    for kernels that are not known to end."""
    text = "\n".join(_Printer(kernel).kernel())
    products = {wgmma_name(s): wgmma_helper(s) for s in walk(kernel.body) if isinstance(s, Wgmma)}
    needed = used(text, {**HELPERS, **products, **(helpers or {})})
    return "\n".join([*needed, "", text, ""]) if needed else text + "\n"


class _Printer(Statements):
    def block(self, body: tuple[S, ...], depth: int) -> Iterator[str]:
        pad = "    " * depth
        for s in body:
            if isinstance(s, For):
                yield from self.loop(s, depth)
            elif isinstance(s, If):
                yield from self.branch(s, depth)
            elif isinstance(s, Roles):
                yield from self.roles(s, depth)
            else:
                yield pad + self.simple(s)

    def loop(self, s: For, depth: int) -> Iterator[str]:
        pad = "    " * depth
        if s.unroll != 1:
            yield pad + ("#pragma unroll" if s.unroll == 0 else f"#pragma unroll {max(1, s.unroll)}")
        one = isinstance(s.step, Lit) and s.step.value == 1
        step = f"++{s.var.name}" if one else f"{s.var.name} += {self.x(s.step)}"
        head = f"{CTYPE[s.var.type]} {s.var.name} = {self.x(s.start)}; {s.var.name} < {self.x(s.stop, 8)}; {step}"
        yield f"{pad}for ({head}) {{"
        yield from self.block(s.body, depth + 1)
        yield pad + "}"

    def branch(self, s: If, depth: int) -> Iterator[str]:
        pad = "    " * depth
        yield f"{pad}if ({self.x(s.cond)}) {{"
        yield from self.block(s.then, depth + 1)
        if s.orelse:
            yield pad + "} else {"
            yield from self.block(s.orelse, depth + 1)
        yield pad + "}"

    def roles(self, s: Roles, depth: int) -> Iterator[str]:
        pad, end = "    " * depth, 0
        for k, role in enumerate(s.roles):
            end += 32 * role.warps
            head = "else" if k and k == len(s.roles) - 1 else f"if ((int)threadIdx.x < {end})"
            before = "} else " if k and head != "else" else "} " if k else ""
            yield f"{pad}{before}{head} {{  // {role.name}"
            if role.registers:
                yield f"{pad}    {self.registers(role)}"
            yield from self.block(role.body, depth + 1)
        yield pad + "}"

    def registers(self, role: Role) -> str:
        return f"registers_{'down' if role.registers < self.k.launch_registers else 'up'}<{role.registers}>();"

    # -- the kernel

    def kernel(self) -> Iterator[str]:
        k = self.k
        yield f"// {k.comment}"
        yield f'extern "C" __global__ void {self.bounds()}'
        yield f"{k.name}({', '.join(self.params())}) {{"
        yield from ("    " + line for line in self.declare_shared())
        yield from self.block(k.body, 1)
        yield "}"

    def bounds(self) -> str:
        k = self.k
        cluster = f"__cluster_dims__({', '.join(map(str, k.cluster))}) " if k.cluster != (1, 1, 1) else ""
        # registers can be moved between warps only where the number of blocks is bounded
        blocks = k.min_blocks or int(any(r.registers for s in walk(k.body) if isinstance(s, Roles) for r in s.roles))
        return f"{cluster}__launch_bounds__({f'{k.threads}, {blocks}' if blocks else k.threads})"

    def params(self) -> Iterator[str]:
        yield from (self.param(p) for p in self.k.params)
        yield from (f"const __grid_constant__ TensorMap {m.name}" for m in self.k.maps)

    def param(self, p: Param) -> str:
        if p.role == "size":
            return f"const long long {p.name}"
        if self.k.dependent or p.is_work:
            # the kernel before may still write an operand: its loads must not move above the wait for that kernel, as
            # loads of what nothing writes (const, restrict) do; and other blocks write what this one reads of a
            # workspace, behind a fence that the compiler need not keep for memory that it takes to be nobody else's
            return f"{memory_type(p.type)}* {p.name}"
        return f"{'const ' if p.role == 'in' else ''}{memory_type(p.type)}* __restrict__ {p.name}"

    def declare_shared(self) -> Iterator[str]:
        k, at = self.k, self.k.offsets
        dynamic = k.smem > STATIC_SMEM
        if dynamic:
            align = max([1024, *(b.align for b in k.shared)])
            yield f"extern __shared__ __align__({align}) unsigned char shared_memory[];"
        for b in k.shared:
            c = memory_type(b.type)
            if dynamic:
                yield f"{c}* {b.name} = reinterpret_cast<{c}*>(shared_memory + {at[b.name]});"
            elif b.overlays:
                yield f"{c}* {b.name} = reinterpret_cast<{c}*>({b.overlays});"
            else:
                yield f"__shared__ __align__({b.align}) {c} {b.name}[{k.room(b) // BYTES[b.type]}];"
        for r in k.rings:
            c = "unsigned long long"
            if dynamic:
                yield f"{c}* {r.name} = reinterpret_cast<{c}*>(shared_memory + {at[r.name]});"
            else:
                yield f"__shared__ {c} {r.name}[{2 * r.depth}];"
