"""Names of kernels and their parameters that are C++ identifiers and hide nothing that sources use."""

from __future__ import annotations

import re

from emmy.codegen.cuda_helpers import HELPERS

# Words that a parameter may not have as its name: C++'s, CUDA's, the helpers, the math functions that are called, and
# the literals of Kernel IR's text.
_WORDS = """
auto bool break case char const continue default do double else enum extern float for goto if inline int long register
return short signed sizeof static struct switch typedef union unsigned void volatile while asm and or not xor bitand
bitor compl class delete new operator private protected public template this throw try catch namespace using virtual
friend true false typename explicit mutable nullptr threadIdx blockIdx blockDim gridDim warpSize shared_memory
float2 float4 uint2 uint4 fabs fmod floor ceil rint trunc sqrt rsqrt exp exp2 expm1 log log2 log1p sin cos tan asin acos
atan atan2 sinh cosh tanh erf pow copysign fma inf nan
"""
RESERVED = (*re.findall(r"\w+", _WORDS), *HELPERS)


def identifier(name: str) -> str:
    """A C identifier close to `name`."""
    word = re.sub(r"\W", "_", name)
    plain = word[:1].isalpha() or (word[:1] == "_" and word[1:2].isalpha())
    return word if plain else f"p_{word.lstrip('_')}"
