"""How each word of the scalar vocabulary is spelled in CUDA, one row an operation.

A row takes the operands' texts (already of the operation's operand type) and that type.  Functions are the accurate
ones: their greatest errors stand in the CUDA C++ Programming Guide (expf 2 ulp, tanhf 2, erff 2, powf 4, sinf 2 …).
`max` and `min` propagate NaN, integer arithmetic wraps, floor division and remainder follow Python, as PyTorch's do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Spelling = Callable[[Sequence[str], str], str]
INTEGERS: Final = ("i64", "i32", "i16", "i8", "u8")
CTYPE: Final[dict[str, str]] = {
    "f32": "float", "f64": "double", "i64": "long long", "i32": "int", "i16": "short", "i8": "signed char",
    "u8": "unsigned char", "bool": "bool", "u32": "unsigned", "u64": "unsigned long long",
    "bf16": "unsigned short", "f16": "unsigned short", "f8e4m3": "unsigned char", "f8e5m2": "unsigned char",
}  # fmt: skip
_UNSIGNED: Final = {"i64": "unsigned long long", **dict.fromkeys(("i32", "i16", "i8", "u8"), "unsigned")}


def _wrap(sign: str) -> Spelling:
    """Signed overflow is undefined in C++: integers are added as unsigned numbers."""

    def spell(a: Sequence[str], t: str) -> str:
        if t not in _UNSIGNED:
            return f"{a[0]} {sign} {a[1]}"
        u = _UNSIGNED[t]
        return f"({CTYPE[t]})(({u}){a[0]} {sign} ({u}){a[1]})"

    return spell


def _infix(sign: str) -> Spelling:
    return lambda a, t: f"{a[0]} {sign} {a[1]}"


def _function(stem: str) -> Spelling:
    """`expf` on f32, `exp` on f64."""
    return lambda a, t: f"{stem}{'' if t == 'f64' else 'f'}({', '.join(a)})"


def _typed(stem: str) -> Spelling:
    """A helper a type for floats, one template for integers."""
    return lambda a, t: f"{stem}_{t if t in ('f32', 'f64') else 'int'}({', '.join(a)})"


def _template(name: str) -> Spelling:
    return lambda a, t: f"{name}<{CTYPE[t]}>({', '.join(a)})"


def _extreme(stem: str, sign: str, on_bool: str) -> Spelling:
    def spell(a: Sequence[str], t: str) -> str:
        if t in ("f32", "f64"):
            return f"{stem}_{t}({a[0]}, {a[1]})"
        if t == "bool":
            return f"{a[0]} {on_bool} {a[1]}"
        return f"{a[0]} {sign} {a[1]} ? {a[0]} : {a[1]}"

    return spell


def _rounding(stem: str) -> Spelling:
    """Integers are integral already."""
    return lambda a, t: a[0] if t in INTEGERS or t == "bool" else _function(stem)(a, t)


def _one(t: str) -> str:
    return "1.0" if t == "f64" else "1.0f"


def _floordiv(a: Sequence[str], t: str) -> str:
    return f"floordiv_{t}({a[0]}, {a[1]})" if t in ("f32", "f64") else _template("floordiv_int")(a, t)


def _mod(a: Sequence[str], t: str) -> str:
    return f"mod_{t}({a[0]}, {a[1]})" if t in ("f32", "f64") else _template("mod_int")(a, t)


def _truncdiv(a: Sequence[str], t: str) -> str:
    quotient = f"{a[0]} / {a[1]}"
    return _function("trunc")([quotient], t) if t in ("f32", "f64") else f"({CTYPE[t]})({quotient})"


def _fmod(a: Sequence[str], t: str) -> str:
    return _function("fmod")(a, t) if t in ("f32", "f64") else f"({CTYPE[t]})({a[0]} % {a[1]})"


def _pow(a: Sequence[str], t: str) -> str:
    return _function("pow")(a, t) if t in ("f32", "f64") else _template("pow_int")(a, t)


def _neg(a: Sequence[str], t: str) -> str:
    return f"({CTYPE[t]})(0 - ({_UNSIGNED[t]}){a[0]})" if t in _UNSIGNED else f"-{a[0]}"


def _abs(a: Sequence[str], t: str) -> str:
    if t in ("f32", "f64"):
        return _function("fabs")(a, t)
    return a[0] if t in ("u8", "bool") else f"{a[0]} < 0 ? {_neg(a, t)} : {a[0]}"


def _bits(sign: str) -> Spelling:
    return lambda a, t: f"({CTYPE[t]})({a[0]} {sign} {a[1]})"


def _bnot(a: Sequence[str], t: str) -> str:
    return f"!{a[0]}" if t == "bool" else f"({CTYPE[t]})(~{a[0]})"


def _isinf(a: Sequence[str], t: str) -> str:
    if t == "f64":
        return f"fabs({a[0]}) == (double)EMMY_INF"
    return f"fabsf({a[0]}) == EMMY_INF" if t == "f32" else "false"


CUDA: Final[dict[str, Spelling]] = {
    "add": _wrap("+"), "sub": _wrap("-"), "mul": _wrap("*"), "div": _infix("/"),
    "floordiv": _floordiv, "truncdiv": _truncdiv, "mod": _mod, "fmod": _fmod, "pow": _pow,
    "max": _extreme("max", ">", "||"), "min": _extreme("min", "<", "&&"), "atan2": _function("atan2"),
    "neg": _neg, "abs": _abs, "sign": lambda a, t: f"sign_of<{CTYPE[t]}>({a[0]})",
    "floor": _rounding("floor"), "ceil": _rounding("ceil"), "round": _rounding("rint"), "trunc": _rounding("trunc"),
    "recip": lambda a, t: f"{_one(t)} / {a[0]}", "sqrt": _function("sqrt"), "rsqrt": _function("rsqrt"),
    "exp": _function("exp"), "exp2": _function("exp2"), "expm1": _function("expm1"),
    "log": _function("log"), "log2": _function("log2"), "log1p": _function("log1p"),
    "sin": _function("sin"), "cos": _function("cos"), "tan": _function("tan"),
    "asin": _function("asin"), "acos": _function("acos"), "atan": _function("atan"),
    "sinh": _function("sinh"), "cosh": _function("cosh"), "tanh": _function("tanh"),
    "sigmoid": lambda a, t: f"{_one(t)} / ({_one(t)} + {_function('exp')([f'-{a[0]}'], t)})",
    "erf": _function("erf"),
    "lt": _infix("<"), "le": _infix("<="), "eq": _infix("=="), "ne": _infix("!="),
    "and": _infix("&&"), "or": _infix("||"), "xor": _infix("!="), "not": lambda a, t: f"!{a[0]}",
    "isnan": lambda a, t: f"{a[0]} != {a[0]}", "isinf": _isinf,
    "band": _bits("&"), "bor": _bits("|"), "bxor": _bits("^"), "bnot": _bnot,
    "shl": _template("shl_int"), "shr": _template("shr_int"),
    "where": lambda a, t: f"{a[0]} ? {a[1]} : {a[2]}",
    "cast": lambda a, t: a[0],  # becomes a Convert, or a rounding helper for a narrower float
}  # fmt: skip
