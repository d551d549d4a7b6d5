"""Which card this machine has, asked of the CUDA driver alone: no context is made and PyTorch is not imported."""

from __future__ import annotations

from emmy.errors import DeviceError
from emmy.ir.target import TARGETS
from emmy.runtime.driver import device_capability


def local_arch(device: int = 0) -> str | None:
    """The target of the card (`sm_90a`); None without a driver, without a card, or where no target runs on it."""
    try:
        major, minor = device_capability(device)
    except DeviceError:
        return None
    return next((t.arch for t in TARGETS.values() if t.capability == 10 * major + minor), None)
