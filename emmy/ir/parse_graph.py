"""Reads back what `emmy.ir.show.show_torch` prints: the same graph, but for lines of source and paths of modules."""

from __future__ import annotations

from typing import Any

from emmy.ir.dtype import DTYPES
from emmy.ir.graph import Graph, Input, InputKind, Node, Output, Ref, SizeVar
from emmy.ir.infix import (
    Scope,
    parse_number,
    python_number,
    read_expr,
    read_list,
    read_name,
    read_path,
    read_string,
    read_tensor,
    reader,
)
from emmy.ir.loop import Const, Tensor
from emmy.ir.parse import Reader
from emmy.ir.show import LOADS

_KINDS: dict[str, InputKind] = {word: kind for kind, word in LOADS.items()}
_WORDS = {"true": True, "false": False, "none": None}


def parse_torch(text: str) -> Graph:
    """The graph that prints as `text`.  ParseError says what was found and where."""
    p = _Torch(reader(text, "Torch IR", keep="updates"))
    graph = p.graph()
    if p.r.peek:
        raise p.r.fail("text after the end")
    return graph


class _Torch:
    def __init__(self, r: Reader) -> None:
        self.r, self.names = r, dict[str, str]()  # spelling -> name of a value

    def graph(self) -> Graph:
        sizes = self.struct("Dynamic", self.size)
        user = self.struct("Inputs", self.input)
        updates = self.struct("Outputs", self.field)
        self.words("fn main ( dynamic : Dynamic , inputs : Inputs < dynamic > ) -> Outputs < dynamic > {")
        held: list[Input] = []
        nodes: list[Node] = []
        self.names |= {f"inputs.{i.name}": i.name for i in user}
        while self.r.peek == "let":
            made = self.let()
            if isinstance(made, Input):
                held.append(made)
            elif made is not None:
                nodes.append(made)
        self.r.expect("Outputs")
        # a field is a name, or another name and the value
        values = read_list(self.r, "{", "}", lambda: self.returned({i.name for i in user}))
        self.r.expect("}")
        left = iter(updates)
        outputs = tuple(Output(v, next(left) if isinstance(v, Ref) else "") for v in values)
        return Graph((*held, *user), tuple(nodes), outputs, tuple(sizes))

    def words(self, text: str) -> None:
        for word in text.split():
            self.r.expect(word)

    def struct(self, name: str, item: Any) -> list[Any]:
        self.words(f"struct {name}" if name == "Dynamic" else f"struct {name} < dynamic : Dynamic >")
        found: list[Any] = []
        self.r.expect("{")
        while self.r.peek != "}":
            found.append(item())
        self.r.expect("}")
        return found

    def comma(self) -> None:
        if self.r.peek != "}":
            self.r.expect(",")

    def size(self) -> SizeVar:
        name = read_name(self.r)
        self.r.expect(":")
        low, high = self.whole(), None
        if self.r.peek == "..=":
            self.r.next()
            high = self.whole()
        else:
            self.r.expect("..")
        self.r.expect("=")
        example = self.whole()
        self.comma()
        return SizeVar(name, low, high, example)

    def whole(self) -> int:
        value = self.number()
        if not isinstance(value, int):
            raise self.r.fail(f"expected a whole number, found {value}")
        return value

    def number(self) -> int | float | bool:
        token = self.r.next()
        number = parse_number(token)
        if number is None:
            self.r.at -= 1
            raise self.r.fail(f"expected a number, found {token!r}")
        return python_number(number[0])

    def input(self) -> Input:
        name = read_name(self.r)
        self.r.expect(":")
        tensor = read_tensor(self.r)
        self.comma()
        return Input(name, tensor, "user")

    def field(self) -> str:
        """The input that a field of the outputs updates, empty for none.  Names and types follow from the values."""
        read_name(self.r)
        self.r.expect(":")
        read_tensor(self.r)
        self.comma()
        return self.r.next().removeprefix("// updates ") if self.r.peek.startswith("// updates ") else ""

    def let(self) -> Input | Node | None:
        """A held tensor, a node, or None: a literal, which the node that reads it has too."""
        self.r.expect("let")
        name = read_name(self.r)
        self.r.expect(":")
        results = self.results()
        self.r.expect("=")
        if parse_number(self.r.peek) is not None:
            self.number()
            self.r.expect(";")
            return None
        op = read_path(self.r)
        if op in _KINDS:
            self.r.expect("(")
            target = read_string(self.r)
            self.words(") ;")
            self.names[name] = name
            return Input(name, results[0], _KINDS[op], target)
        args, kwargs = self.arguments()
        self.r.expect(";")
        made = [name] if len(results) == 1 else [f"{name}#{k}" for k in range(len(results))]
        self.names |= {n.replace("#", "."): n for n in made}
        return Node(name, _op(op), args, kwargs, results)

    def results(self) -> tuple[Tensor, ...]:
        if self.r.peek != "(":
            return (read_tensor(self.r),)
        return tuple(read_list(self.r, "(", ")", lambda: read_tensor(self.r)))

    def arguments(self) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        found = read_list(self.r, "(", ")", self.argument)
        return tuple(v for k, v in found if not k), tuple((k, v) for k, v in found if k)

    def argument(self) -> tuple[str, Any]:
        """(keyword or nothing, value)"""
        follows = self.r.tokens[self.r.at + 1][0] if self.r.at + 1 < len(self.r.tokens) else ""
        keyword = read_name(self.r) if follows == "=" else ""
        if keyword:
            self.r.expect("=")
        return keyword, self.value()

    def value(self) -> Any:
        word = self.r.peek
        if word == "[":
            return tuple(read_list(self.r, "[", "]", self.value))
        if word.startswith('"'):
            return read_string(self.r)
        if word in _WORDS:
            return _WORDS[self.r.next()]
        start = self.r.at
        path = read_path(self.r)
        if path in self.names:
            return Ref(self.names[path])
        if path in DTYPES and self.r.peek != "(":
            return path
        self.r.at = start
        number = parse_number(word)
        e = read_expr(self.r, Scope())
        return python_number(number[0]) if number is not None and isinstance(e, Const) else e

    def returned(self, user: set[str]) -> Any:
        follows = self.r.tokens[self.r.at + 1][0] if self.r.at + 1 < len(self.r.tokens) else ""
        if follows == ":":
            read_name(self.r)
            self.r.expect(":")
        if self.r.peek in user:
            return Ref(self.r.next())
        return self.value()


def _op(text: str) -> str:
    """The overload of an operation as it is spelled: `exp`, `add.Tensor`, or whole."""
    dots = text.count(".")
    return f"aten.{text}.default" if dots == 0 else f"aten.{text}" if dots == 1 else text
