"""Tensor IR for people: one `let` a value.  `emmy.ir.parse_rows` reads it back.

let x: f32[4,3] = a + b;                   element-wise; operands have the result's shape or are scalars
let x: f32[4] = 0.0;                       a constant; `weak(0.0)` takes the type of what it meets
let x: i64[4] = emmy::iota(|i| i + 1);     an integer expression of the coordinates
let x: f32[3,4] = emmy::index_map_simple(a, |i, j| [j, i], fill=0.0);
let x: f32[3] = emmy::gather(a, index, |i| [index[i]]);      index operands by name, or by slot: `#1[i]`
let x: f32[9] = emmy::scatter_sum(a, index, source, r in 4, |i| index[r] == i, [r]);
let x: f32[4,1] = sum(a, axis=-1);         `  // of bf16 products` behind it: the sum of a contraction
let x: f32[4] = scan_sum(a, axis=0);
let x: bf16[4] = cast(a, bf16);            rounds; `a as bf16`: the storage type of an interior value
let x: f32[4,8] = torch::RmsNorm("1", "1e-06", a);           an operation that is still whole, arguments as they are
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from emmy.ir.infix import infix, number_text, parse_number, tensor_text
from emmy.ir.loop import Expr, Tensor, const
from emmy.ir.parse import index_text, parse_expr, parse_index
from emmy.ir.tensor import SIGNATURES, Shape, coordinates, parse_axes

SYMBOLS: Final = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&",
    "or": "|",
}  # fmt: skip
# how a scatter's own axis is spelled
SOURCE_LETTER: Final = "r"


class TensorRow(NamedTuple):
    """One value: `args` are the plain arguments of its kind (of primitives without shapes, which the type says), and
    `operands` are named and typed; the name of a number is its text."""

    name: str
    tensor: Tensor
    kind: str
    args: tuple[object, ...]
    operands: tuple[tuple[str, Tensor], ...]


def explicit(rows: Iterable[TensorRow]) -> Iterator[TensorRow]:
    """The rows with an index map of its own for every operand that is broadcast (scalars stand as they are)."""
    for row in rows:
        operands = row.operands
        if row.kind in ("Bin", "Where"):
            operands = ()
            for k, (name, tensor) in enumerate(row.operands):
                if tensor.shape in (row.tensor.shape, ()):
                    operands += ((name, tensor),)
                    continue
                wide = (f"{row.name}_bc{k}", Tensor(tensor.dtype, row.tensor.shape))
                yield TensorRow(*wide, "Map", (_stretch(tensor.shape, row.tensor.shape), ""), ((name, tensor),))
                operands += (wide,)
        yield row._replace(operands=operands)


def _stretch(shape: Shape, wide: Shape) -> str:
    """Numpy's rule as an index map, aligned on the right."""
    own = coordinates(wide)[len(wide) - len(shape) :]
    return index_text(tuple(a if e is a.extent else const(0) for e, a in zip(shape, own, strict=True)))


def show_tensor(rows: Iterable[TensorRow]) -> str:
    """Rows in order of definition as text, broadcasts as index maps."""
    return "\n".join(_line(row) for row in explicit(rows))


def _line(row: TensorRow) -> str:
    show = _SHOW.get(row.kind, _whole)
    note = _factors(row) if row.kind == "Reduce" else ""
    return f"let {row.name}: {tensor_text(row.tensor)} = {show(row, [_spelt(o) for o in row.operands])};{note}"


def _spelt(operand: tuple[str, Tensor]) -> str:
    name, tensor = operand
    return number_text(name, tensor.dtype) if parse_number(name) is not None else name


def letter(i: int) -> str:
    return "ijklmnpq"[i] if i < 8 else f"d{i}"


def _letters(shape: Shape) -> dict[str, str]:
    return {f"d{i}": letter(i) for i in range(len(shape))}


def slot_names(operands: Sequence[str]) -> dict[str, str]:
    """Slot -> spelling of index operands (from slot 1): by name where one name stands for one slot."""
    plain = [o if operands.count(o) == 1 and parse_number(o) is None else "" for o in operands]
    return {str(k + 1): o or f"#{k + 1}" for k, o in enumerate(plain)}


def _closure(shape: Shape, body: Sequence[Expr], text: str) -> str:
    used = {a.name for e in body for a in e.free}
    params = [letter(i) if f"d{i}" in used else f"_{letter(i)}" for i in range(len(shape))]
    return f"|{', '.join(params)}| {text}"


def _indexed(shape: Shape, index: Sequence[Expr], slots: dict[str, str]) -> str:
    names = {**_letters(shape), **slots}
    return _closure(shape, index, f"[{', '.join(infix(e, names) for e in index)}]")


def _full(row: TensorRow, ops: Sequence[str]) -> str:
    text, dtype = str(row.args[0]), str(row.args[1])
    return f"weak({text})" if dtype == "weak" else number_text(text, dtype)


def _iota(row: TensorRow, ops: Sequence[str]) -> str:
    e, shape = parse_expr(str(row.args[0])), row.tensor.shape
    return f"emmy::iota({_closure(shape, [e], infix(e, _letters(shape)))})"


def _bin(row: TensorRow, ops: Sequence[str]) -> str:
    name = str(row.args[0])
    return f"{ops[0]} {SYMBOLS[name]} {ops[1]}" if name in SYMBOLS else f"{name}({ops[0]}, {ops[1]})"


def _reduce(row: TensorRow, ops: Sequence[str]) -> str:
    kind = str(row.args[0]).partition(":")[0]
    axes = [a - len(row.tensor.shape) for a in parse_axes(str(row.args[1]))]
    return f"{kind}({ops[0]}, axis={axes[0] if len(axes) == 1 else axes})"


def _factors(row: TensorRow) -> str:
    factors = str(row.args[0]).partition(":")[2]
    return f"  // of {factors} products" if factors else ""


def _map(row: TensorRow, ops: Sequence[str]) -> str:
    fill = f", fill={row.args[1]}" if row.args[1] != "" else ""
    return f"emmy::index_map_simple({ops[0]}, {_indexed(row.tensor.shape, parse_index(str(row.args[0])), {})}{fill})"


def _gather(row: TensorRow, ops: Sequence[str]) -> str:
    index = parse_index(str(row.args[0]))
    return f"emmy::gather({', '.join(ops)}, {_indexed(row.tensor.shape, index, slot_names(ops[1:]))})"


def _scatter(row: TensorRow, ops: Sequence[str]) -> str:
    mode, extent, condition, source = (str(a) for a in row.args)
    shape, hit, index = row.tensor.shape, parse_expr(condition), parse_index(source)
    names = {**_letters(shape), "j": SOURCE_LETTER, **slot_names(ops[1:-1])}
    where = _closure(shape, [hit, *index], infix(hit, names))
    read = ", ".join(infix(e, names) for e in index)
    return (
        f"emmy::scatter_{mode}({', '.join(ops)}, {SOURCE_LETTER} in {infix(parse_expr(extent), {})}, {where}, [{read}])"
    )


def _whole(row: TensorRow, ops: Sequence[str]) -> str:
    """An operation of Torch in the order of its signature."""
    args, operands = iter(row.args), iter(ops)
    parts = [next(operands) if s == "t" else _plain(next(args)) for s in SIGNATURES[row.kind]]
    return f"torch::{row.kind}({', '.join(parts)})"


def _plain(arg: object) -> str:
    if isinstance(arg, tuple):
        return f"[{', '.join(infix(e, {}) for e in arg)}]"
    return f'"{arg}"' if isinstance(arg, str) else str(arg)


Show = Callable[[TensorRow, Sequence[str]], str]
_SHOW: Final[dict[str, Show]] = {
    "Full": _full,
    "Iota": _iota,
    "Un": lambda row, ops: f"{row.args[0]}({ops[0]})",
    "Bin": _bin,
    "Where": lambda row, ops: f"where({', '.join(ops)})",
    "Cast": lambda row, ops: f"cast({ops[0]}, {row.args[0]})",
    "As": lambda row, ops: f"{ops[0]} as {row.args[0]}",
    "Reduce": _reduce,
    "Scan": lambda row, ops: f"scan_{row.args[0]}({ops[0]}, axis={row.args[1]})",
    "Map": _map,
    "Gather1": _gather, "Gather2": _gather, "Gather3": _gather,
    "Scatter1": _scatter, "Scatter2": _scatter,
}  # fmt: skip
