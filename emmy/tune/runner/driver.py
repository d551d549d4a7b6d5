"""Calls of the CUDA driver, whose failures are exceptions."""

from __future__ import annotations

from typing import Any, Final

FATAL: Final = {700: "illegal address", 714: "launch failure", 715: "illegal instruction", 716: "misaligned address",
                717: "illegal address", 718: "launch failure", 719: "launch failure", 710: "assertion"}  # fmt: skip


class CudaError(Exception):
    def __init__(self, code: int, name: str, call: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code

    @property
    def kind(self) -> str:
        return FATAL.get(self.code, "memory" if self.code == 2 else "launch")

    @property
    def fatal(self) -> bool:
        return self.code in FATAL


def cuda(name: str, *args: Any) -> Any:
    from cuda.bindings import driver

    status, *values = getattr(driver, name)(*args)
    if int(status):
        raise CudaError(int(status), status.name, name)
    return values[0] if len(values) == 1 else values
