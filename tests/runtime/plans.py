"""Hand-written kernels and plans for the runtime's tests."""

from emmy.ir.build import iadd, idiv, imul
from emmy.ir.graph import Node, Output, Ref, SizeVar
from emmy.ir.loop import Expr, Tensor, const, size
from emmy.ir.plan import Buffer, KernelLaunch, Launch, OpaqueLaunch, Plan, Role

S = size("s")
COLUMNS = 8
SIZES = (SizeVar("s", 0, 1 << 22, 16),)
CTYPES = {"f32": "float", "i64": "long long", "i32": "int", "bf16": "unsigned short", "u8": "unsigned char"}


def tensor(*extents: Expr | int, dtype: str = "f32") -> Tensor:
    return Tensor(dtype, tuple(const(e) if isinstance(e, int) else e for e in extents))


ROWS = tensor(S, COLUMNS)


def buffer(name: str, role: Role, of: Tensor = ROWS, source: str = "") -> Buffer:
    return Buffer(name, of, role, source or (name if role not in ("temporary", "output", "folded") else ""))


def elementwise(name: str, dtypes: str, value: str, columns: int = COLUMNS, rows: str = "s") -> str:
    """Source of `out[i] = value` for i < rows * columns; `p0[i]`, `p1[i]` … are the operands.

    `dtypes` lists the operands' types and the result's, e.g. `f32 f32 -> f32`.  Pointers may alias.
    """
    operands, result = (part.split() for part in dtypes.split("->"))
    parameters = [f"const {CTYPES[t]}* p{k}" for k, t in enumerate(operands)] + [f"{CTYPES[result[0]]}* out"]
    if rows == "s":
        parameters.append("long long s")
    return f"""extern "C" __global__ void __launch_bounds__(256) {name}({", ".join(parameters)}) {{
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < {rows} * {columns}LL) out[i] = {value};
}}
"""


def launch(
    name: str,
    operands: str,
    results: str,
    source: str,
    *,
    sizes: tuple[str, ...] = ("s",),
    elements: Expr | int | None = None,
    smem: int = 0,
    at_build: bool = False,
) -> KernelLaunch:
    """A launch of 256 threads a block, enough blocks for `elements` (all rows unless said)."""
    count = imul(S, COLUMNS) if elements is None else elements
    blocks = idiv(iadd(count, 255), 256)
    grid = (blocks, const(1), const(1))
    return KernelLaunch(
        name, tuple(operands.split()), tuple(results.split()), sizes, grid, 256, smem, source, "", "test", "", at_build
    )


def opaque(name: str, op: str, operands: str, results: str, *types: Tensor) -> OpaqueLaunch:
    names = tuple(operands.split())
    node = Node(name, op, tuple(Ref(n) for n in names), (), types)
    return OpaqueLaunch(name, names, tuple(results.split()), node)


def plan(buffers: list[Buffer], launches: list[Launch], outputs: str, arch: str = "sm_90a", mutates: str = "") -> Plan:
    """`outputs` names returned buffers; `mutates` lists `target=value` pairs."""
    pairs = [pair.split("=") for pair in mutates.split()]
    outs = [Output(Ref(value), target) for target, value in pairs] + [Output(Ref(n)) for n in outputs.split()]
    return Plan(arch, tuple(buffers), tuple(launches), tuple(outs), SIZES)


DOUBLE = elementwise("double_it", "f32 -> f32", "2.0f * p0[i]")
ADD_ROW = elementwise("add_row", "f32 f32 -> f32", f"p0[i] + p1[i % {COLUMNS}]")


def two_kernels(arch: str = "sm_90a") -> Plan:
    """out = 2 x + w: x f32[s,8], w f32[8] a parameter, with one temporary."""
    return plan(
        [
            buffer("x", "input"),
            buffer("w", "parameter", tensor(COLUMNS), "linear.weight"),
            buffer("t", "temporary"),
            buffer("y", "output"),
        ],
        [launch("double_it", "x", "t", DOUBLE), launch("add_row", "t w", "y", ADD_ROW)],
        "y",
        arch,
    )
