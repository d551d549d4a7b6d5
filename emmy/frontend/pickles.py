"""Reading a pickle without running it: which globals it names, and whether it can only build plain tensors.

A pickle is a program for a stack machine; what it can do beyond building containers is bounded by the globals it names.
`pickletools.genops` lists its instructions without executing any.
"""

from __future__ import annotations

import pickletools
import re
from typing import Final

from emmy.errors import ModelFileError

# What PyTorch itself names to rebuild plain tensors and parameters.
PLAIN: Final = frozenset(
    (
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_parameter",
        "collections.OrderedDict",
        "torch.Size",
        "torch.device",
        "torch.storage.UntypedStorage",
        "torch.storage.TypedStorage",
        "torch.float8_e4m3fn",
        "torch.float8_e5m2",
    )
)
_STORAGE: Final = re.compile(
    r"torch\.(Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool|Float8_e4m3fn|Float8_e5m2|Untyped)Storage"
)
_DTYPE: Final = re.compile(r"torch\.(u?int(8|16|32|64)|(b?float)(16|32|64)|bool)")
_STRINGS: Final = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING")
# Instructions that hold no value on the stack's top, so that two strings before STACK_GLOBAL stay the last two.
_SILENT: Final = ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "FRAME", "PROTO")
_UNREADABLE: Final = "?.?"


def globals_of(data: bytes) -> set[str]:
    """Every `module.name` that a pickle could load; `?.?` for one whose name is computed.

    Raises ValueError where the bytes are no pickle.
    """
    found: set[str] = set()
    strings: list[str | None] = []
    memo: dict[int, str | None] = {}
    for op, arg, _ in pickletools.genops(data):
        name = op.name
        if name in ("GLOBAL", "INST"):
            found.add(str(arg).replace(" ", ".", 1))
            strings.append(None)
        elif name == "STACK_GLOBAL":
            module, attribute = strings[-2:] if len(strings) > 1 else (None, None)
            found.add(f"{module}.{attribute}" if module is not None and attribute is not None else _UNREADABLE)
            strings.append(None)
        elif name in ("EXT1", "EXT2", "EXT4"):
            found.add(_UNREADABLE)
        elif name in _STRINGS:
            strings.append(str(arg))
        elif name == "MEMOIZE":
            memo[len(memo)] = strings[-1] if strings else None
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[int(arg or 0)] = strings[-1] if strings else None
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            strings.append(memo.get(int(arg or 0)))
        elif name not in _SILENT:
            strings.append(None)
    return found


def is_plain(name: str) -> bool:
    """True for a global that can only rebuild a plain tensor or container."""
    return name in PLAIN or bool(_STORAGE.fullmatch(name) or _DTYPE.fullmatch(name))


def check_plain(data: bytes, what: str) -> None:
    """ModelFileError unless the pickle can only build plain tensors and containers."""
    try:
        names = globals_of(data)
    except (ValueError, UnicodeDecodeError, OverflowError) as e:
        raise ModelFileError(f"{what} holds a damaged pickle: {e}", "save the model again") from e
    hostile = sorted(n for n in names if not is_plain(n))
    if hostile:
        raise ModelFileError(
            f"{what} holds a pickle that would call {', '.join(hostile[:3])}",
            "only plain tensors are read from a model file; do not open it unless you trust who made it",
        )
