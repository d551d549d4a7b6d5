"""Which operation is translated by which handler.  Keys are ATen operations without their overload;
of another library with its name before them."""

from __future__ import annotations

from typing import Final

from emmy.frontend.translate.activation import ACTIVATION
from emmy.frontend.translate.attention import ATTENTION
from emmy.frontend.translate.call import Handler
from emmy.frontend.translate.contraction import CONTRACTION
from emmy.frontend.translate.convolution import CONVOLUTION
from emmy.frontend.translate.creation import CREATION
from emmy.frontend.translate.elementwise import ELEMENTWISE
from emmy.frontend.translate.grouped import GROUPED
from emmy.frontend.translate.indexing import INDEXING
from emmy.frontend.translate.interpolation import INTERPOLATION
from emmy.frontend.translate.joins import JOINS
from emmy.frontend.translate.layout import LAYOUT
from emmy.frontend.translate.logic import LOGIC
from emmy.frontend.translate.loss import LOSS
from emmy.frontend.translate.normalization import NORMALIZATION
from emmy.frontend.translate.pooling import POOLING
from emmy.frontend.translate.reduction import REDUCTION
from emmy.frontend.translate.scatter import SCATTER

HANDLERS: Final[dict[str, Handler]] = {
    **ELEMENTWISE, **LOGIC, **ACTIVATION, **CREATION, **LAYOUT, **JOINS, **REDUCTION, **CONTRACTION, **GROUPED,
    **NORMALIZATION, **ATTENTION, **INDEXING, **SCATTER, **CONVOLUTION, **POOLING, **INTERPOLATION, **LOSS,
}  # fmt: skip
