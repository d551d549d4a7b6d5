"""What of this machine works, found by trying it."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from emmy.errors import CompileError, DeviceError, StoreError
from emmy.ir.target import TARGETS
from emmy.runtime.driver import driver_version
from emmy.runtime.nvrtc import compile_cubin, nvrtc_version
from emmy.settings import Settings

_MINIMUM_PYTHON: Final = (3, 11)
_PROBE: Final = """extern "C" __global__ void probe(const unsigned short* x, unsigned short* y) {
    float v = __uint_as_float((unsigned)x[threadIdx.x] << 16);
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y[threadIdx.x]) : "f"(expf(v)));
}
"""


@dataclass(frozen=True, slots=True)
class Check:
    """`needed` tells a fault from something that only launching needs; `hint` says what to do where `ok` is false."""

    name: str
    ok: bool
    detail: str
    hint: str = ""
    needed: bool = True


def diagnose(settings: Settings | None = None) -> list[Check]:
    """Every check, in the order in which a reader should mend what fails.  Raises nothing of its own."""
    settings = settings or Settings.read()
    driver = _attempt("driver", driver_version, "install the NVIDIA driver to launch")
    compiler = list(_compiler())
    pair = [_loads(driver.detail, compiler[0].detail)] if driver.ok and compiler[0].ok else []
    return [
        _python(),
        *_packages(),
        driver,
        *_torch_cuda(),
        *compiler,
        *pair,
        _folder("kernel cache", settings.cache_dir, "EMMY_CACHE_DIR"),
        _store(settings.evidence),
    ]


def _python() -> Check:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", sys.version_info >= _MINIMUM_PYTHON, text, "install Python 3.11 or newer")


def _packages() -> Iterator[Check]:
    for name, package, module in (
        ("torch", "torch", "torch"),
        ("egglog", "egglog", "egglog.bindings"),
        ("HiGHS", "highspy", "highspy"),
        ("duckdb", "duckdb", "duckdb"),
    ):
        yield _package(name, package, module)


def _package(name: str, package: str, module: str) -> Check:
    try:
        import_module(module)
        return Check(name, True, version(package))
    except (ImportError, OSError, PackageNotFoundError) as error:
        return Check(name, False, str(error), f"pip install {package}")


def _torch_cuda() -> Iterator[Check]:
    try:
        import torch
    except (ImportError, OSError):
        return  # the packages' check says so
    build = torch.version.cuda
    detail, hint = build or "this is a CPU build", "install torch with CUDA to launch kernels"
    yield Check("CUDA build of torch", build is not None, detail, hint, needed=False)
    if not torch.cuda.is_available():
        yield Check("GPU", False, "torch sees none", "compiling for a target needs none", needed=False)
        return
    for k in range(torch.cuda.device_count()):
        yield _gpu(torch.cuda.get_device_name(k), torch.cuda.get_device_capability(k))


def _gpu(name: str, capability: tuple[int, int]) -> Check:
    number = 10 * capability[0] + capability[1]
    card = next((t for t in TARGETS.values() if t.capability == number), None)
    if card is None:
        hint = f"compile on it for one of {', '.join(TARGETS)}; none runs there"
        return Check("GPU", False, f"{name}, sm_{number}, is no target", hint, needed=False)
    stands_for = "" if card.gpu.lower() in name.lower() else f", whose costs are those of a {card.gpu}"
    return Check("GPU", True, f"{name}, target {card.arch}{stands_for}", needed=False)


def _compiler() -> Iterator[Check]:
    found = _attempt("NVRTC", nvrtc_version, "pip install nvidia-cuda-nvrtc cuda-bindings", needed=True)
    yield found
    if not found.ok:
        return
    for arch in TARGETS:
        yield _attempt(f"compile for {arch}", partial(_probe, arch), "update nvidia-cuda-nvrtc", needed=True)


def _loads(driver: str, compiler: str) -> Check:
    """A driver runs machine code of its own major version's compilers, newer minor versions included."""
    fits = int(driver.split(".")[0]) >= int(compiler.split(".")[0])
    text = f"driver {driver}, NVRTC {compiler}"
    return Check("driver runs NVRTC's code", fits, text, f"install nvidia-cuda-nvrtc=={driver.split('.')[0]}.*", False)


def _probe(arch: str) -> str:
    made = compile_cubin(_PROBE, "probe", arch)
    return f"{len(made.cubin)} bytes, {made.registers} registers"


def _attempt(name: str, run: Callable[[], str], hint: str, needed: bool = False) -> Check:
    try:
        return Check(name, True, run(), needed=needed)
    except (CompileError, DeviceError) as error:
        return Check(name, False, error.what.splitlines()[0], hint, needed)
    except (ImportError, OSError, RuntimeError) as error:  # the bindings are missing, or find no library to load
        return Check(name, False, str(error).splitlines()[0], hint, needed)


def _store(path: Path) -> Check:
    """A file that is there must be a store; where there is none yet, one must be writable."""
    from emmy.extract.store import Store

    folder = _folder("evidence store", path.parent, "EMMY_TUNE_DB")
    if not folder.ok or not path.exists():
        return folder
    try:
        Store(path).version()
    except StoreError as error:
        return Check("evidence store", False, error.what, error.do or "move it away, or name another with EMMY_TUNE_DB")
    return Check("evidence store", True, str(path))


def _folder(name: str, path: Path, variable: str) -> Check:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"emmy")
    except OSError as error:
        return Check(name, False, f"{path}: {error.strerror}", f"name a writable place with {variable}")
    return Check(name, True, str(path))
