"""Names that a person can follow back to the model: of tensors between launches and of kernels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from emmy.egraph.numbering import Numbering
from emmy.ir.graph import Graph
from emmy.ir.tensor import Program

# ATen operations whose own name is longer than what people call them
SHORT: Final = {
    "scaled_dot_product_attention": "sdpa",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "_to_copy": "cast",
    "native_layer_norm": "layer_norm",
    "_fused_rms_norm": "rms_norm",
}
# operations that name a kernel only when nothing heavier is in it
LIGHT: Final = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "neg",
        "pow",
        "rsqrt",
        "sqrt",
        "exp",
        "log",
        "sin",
        "cos",
        "abs",
        "cast",
        "view",
        "reshape",
        "permute",
        "transpose",
        "t",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "cat",
        "stack",
        "split",
        "chunk",
        "clone",
        "contiguous",
        "alias",
        "detach",
        "where",
        "full",
        "arange",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and",
        "or",
        "not",
        "bitwise_and",
        "bitwise_or",
        "bitwise_not",
        "logical_and",
        "logical_or",
        "logical_not",
        "unsafe_view",
        "flatten",
        "unflatten",
        "repeat",
        "masked_fill",
        "clamp",
        "maximum",
        "minimum",
        "to",
        "type_as",
        "expand_as",
        "getitem",
        "dropout",
        "zeros",
        "ones",
        "new_ones",
        "new_zeros",
        "full_like",
        "zeros_like",
        "ones_like",
        "index",
        "unbind",
        "rsub",
    ]
)
MOST_PARTS: Final = 4


def op_name(aten: str) -> str:
    """`aten._to_copy.default` -> `cast`, `aten.add_.Tensor` -> `add`."""
    name = aten.split(".")[1] if aten.count(".") else aten
    return SHORT.get(name, name).strip("_")


class Names:
    """Which Torch node each numbered tensor belongs to."""

    def __init__(self, graph: Graph, program: Program, numbering: Numbering) -> None:
        self.graph, self.numbering = graph, numbering
        self.input_names: dict[int, str] = {}
        self.final: dict[int, int] = {}
        by_origin: dict[int, int] = {}
        inputs = [t for t in program.terms if t.kind == "Input"]
        for k, term in enumerate(inputs):
            number = numbering.numbers[term.id]
            self.input_names[number] = (
                graph.inputs[k].name if k < len(graph.inputs) else self._opaque_name(term.id, program)
            )
        for term in program.terms:
            by_origin[term.origin] = term.id
        for origin, term_id in by_origin.items():
            if origin >= 0:
                self.final[numbering.numbers[term_id]] = origin
        self.inner = self._inner_owners()
        self._used: dict[str, int] = {}
        # tensors that lie where an input does: their number -> the input's
        self.in_place: dict[int, int] = {}
        self._names: dict[int, str] = {}

    def _inner_owners(self) -> dict[int, int]:
        """A value inside an operation belongs to the first of the program's operations that reads it."""
        order, found = self.numbering.order, dict(self.final)
        for p in sorted(self.numbering.prims, key=lambda p: (-order.get(p.result, 0), -p.id)):
            owner = found.get(p.result)
            if owner is None:
                continue
            for x in p.operands:
                if x not in self.final and x not in self.input_names and order.get(x, 0) < order[p.result]:
                    found[x] = min(found.get(x, owner), owner)
        return found

    def _opaque_name(self, term: int, program: Program) -> str:
        for call in program.opaque:
            if term in call.results:
                node = self.graph.nodes[call.node]
                k = call.results.index(term)
                return node.name if len(call.results) == 1 else f"{node.name}_{k}"
        raise AssertionError(f"input term {term} is neither an input nor an opaque result")

    def owner(self, tensor: int) -> int:
        """Index of the Torch node that the tensor is (a part of), -1 for none."""
        return self.inner.get(tensor, -1)

    def tensor(self, number: int) -> str:
        """A name for the buffer of a tensor, unique in the program."""
        number = self.in_place.get(number, number)
        if number in self.input_names:
            return self.input_names[number]
        if number not in self._names:
            origin = self.owner(number)
            base = self.graph.nodes[origin].name if origin >= 0 else "value"
            if number not in self.final:
                base += "_part"
            self._names[number] = unique(self._used, base)
        return self._names[number]

    def kernel(self, covers: Iterable[int], results: Sequence[int], padded: Collection[int] = ()) -> str:
        """`k_rms_norm_linear` for what a launch computes; `_reduce` where it ends inside an operation, `_pad` where it
        writes one of the `padded` copies of an operand."""
        origins = sorted({o for t in covers if (o := self.owner(t)) >= 0})
        ops = list(dict.fromkeys(op_name(self.graph.nodes[o].op) for o in origins))
        heavy = [o for o in ops if o not in LIGHT]
        last = self.owner(results[0])
        if not heavy:
            name = self.graph.nodes[last].name if last >= 0 else "value"
            return identifier(f"k_{name.lstrip('_')}_pointwise")
        name = "_".join(heavy if len(heavy) <= MOST_PARTS else [*heavy[: MOST_PARTS - 1], heavy[-1]])
        if results[0] in padded:
            return identifier(f"k_{name}_pad")
        whole = all(t in self.final for t in results[:1])
        return identifier(f"k_{name}" if whole else f"k_{name}_reduce")


def identifier(text: str) -> str:
    """A C identifier of at most 60 characters."""
    clean = re.sub(r"\W+", "_", text)
    return clean[:60].rstrip("_")


def unique(names: dict[str, int], name: str) -> str:
    """`name`, or `name_2`, `name_3` … where it was given before; counts in `names`."""
    count = names[name] = names.get(name, 0) + 1
    return name if count == 1 else f"{name}_{count}"
