"""Torch IR (`emmy.ir.graph`) -> Tensor IR (`emmy.ir.tensor`)."""

from emmy.frontend.translate.program import node_operands, translate
from emmy.frontend.translate.table import HANDLERS

__all__ = ["HANDLERS", "node_operands", "translate"]
