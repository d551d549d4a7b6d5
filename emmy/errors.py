"""The one tree of errors.  Each says what is wrong and where, and what to do about it."""

from __future__ import annotations


class EmmyError(Exception):
    """`what` happened (and where); `do` says what the user can do."""

    def __init__(self, what: str, do: str = "") -> None:
        super().__init__(what if not do else f"{what}\n  {do}")
        self.what, self.do = what, do


class UsageError(EmmyError):
    """The command or call was not one we take (exit code 2)."""


class ModelFileError(EmmyError):
    """A model file that is not what it should be, or that we will not open."""


class UnsupportedError(EmmyError):
    """An operation, type or shape that we do not compile."""


class PinError(UsageError):
    """A pinned schedule row that cannot be honoured."""


class LoweringError(EmmyError):
    """A launch for which no alternative became a kernel."""


class StoreError(EmmyError):
    """The evidence store cannot be read or written."""


class PacketError(EmmyError):
    """A work packet that is not what it should be."""


class InputError(UsageError):
    """A call's argument, or a weight, that does not fit the compiled program."""


class PlanError(EmmyError):
    """A plan that contradicts itself, e.g. a launch that reads what nothing has written."""


class CompileError(EmmyError):
    """CUDA source that the compiler refuses; `log` is all that the compiler said."""

    def __init__(self, what: str, do: str = "", log: str = "") -> None:
        super().__init__(what, do)
        self.log = log


class DeviceError(EmmyError):
    """A call of the CUDA driver that failed, or a machine on which it cannot be made."""


class EvidenceError(EmmyError):
    """A choice that rests on no measurement where only measurements are allowed (`--strict-evidence`)."""
