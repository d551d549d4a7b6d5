"""CUDA source to machine code, by NVRTC."""

from __future__ import annotations

from typing import Final

NVRTC_OPTIONS: Final = ("--std=c++17", "--ptxas-options=-v")


def nvrtc_version() -> str:
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    if int(status):
        raise RuntimeError(f"NVRTC: {status}")
    return f"{major}.{minor}"


def compile_source(source: str, entry: str, arch: str) -> bytes | str:
    """Machine code, or the compiler's first complaint."""
    from cuda.bindings import nvrtc

    status, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{entry}.cu".encode(), 0, [], [])
    if int(status):
        return f"NVRTC: {status}"
    try:
        options = [o.encode() for o in (f"--gpu-architecture={arch}", *NVRTC_OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status):
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = bytes(max(2, size))
            nvrtc.nvrtcGetProgramLog(program, log)
            lines = log.rstrip(b"\0").decode(errors="replace").splitlines()
            return next((l for l in lines if "error" in l), lines[0] if lines else str(status))[:500]
        status, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = bytes(max(2, size))
        (status,) = nvrtc.nvrtcGetCUBIN(program, cubin)
        return f"NVRTC: {status}" if int(status) else cubin[:size]
    finally:
        nvrtc.nvrtcDestroyProgram(program)
