"""Programs from model files.  Nothing in a file is executed unless the user trusts it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import torch
from torch import nn

from emmy.errors import ModelFileError, UsageError
from emmy.frontend.archive import check_archive, open_strict, read_member
from emmy.frontend.capture import capture, from_exported, quiet
from emmy.frontend.exported import Exported
from emmy.frontend.pickles import globals_of, is_plain
from emmy.frontend.program import Program
from emmy.ir.torch_types import TORCH

_EXPORT: Final = "export it: torch.export.save(torch.export.export(model.eval(), inputs), 'model.pt2')"
_TOKEN: Final = re.compile(r"\w+|\S")
_NUMBER: Final = re.compile(r"[0-9]+")


def load_file(path: str | Path, trust_pickle: bool = False, inputs: str | None = None) -> Program:
    """The program in a model file.

    Args:
        path: a `.pt2` or `.pt` written by `torch.export.save`, or (trusted only) by `torch.save(module)`.
        trust_pickle: run what the file's pickles say, as PyTorch would.
        inputs: types of the example inputs of a pickled module, as `f32[1,32,2048],i64[1,32]`.
    Raises:
        ModelFileError: the file is no model that we open; says what it is and what to do.
        UsageError: `inputs` is missing, misspelled or not wanted.
    """
    path = Path(path)
    what = str(path)
    if path.is_dir():
        raise ModelFileError(f"{what} is a folder", "name a model file, or a Hugging Face checkpoint with config.json")
    try:
        file = path.open("rb")
    except FileNotFoundError as e:
        raise ModelFileError(f"there is no file {what}", "check the path") from e
    except OSError as e:
        raise ModelFileError(f"{what} cannot be read: {e.strerror}", "check its permissions") from e
    with file:
        start = file.read(16)
        file.seek(0)
        if start.startswith(b"PK\x03\x04"):
            return _load_zip(file, what, path.stem, trust_pickle, inputs)
        if start[:1] == b"\x80" and start[1:2] <= b"\x05":
            return _load_module(file, what, path.stem, trust_pickle, inputs, _legacy_globals(file, what))
        raise _not_a_model(start, what)


def _not_a_model(start: bytes, what: str) -> ModelFileError:
    if not start:
        return ModelFileError(f"{what} is empty", "save or download it again")
    if start[8:9] == b"{":
        return ModelFileError(f"{what} is a safetensors file: weights without a model", "name the checkpoint's folder")
    if start.startswith(b"GGUF"):
        return ModelFileError(f"{what} is a GGUF file, not a PyTorch program", _EXPORT)
    return ModelFileError(f"{what} is no PyTorch model file", f"it begins with {start[:8]!r}; {_EXPORT}")


def _load_zip(file: IO[bytes], what: str, name: str, trusted: bool, inputs: str | None) -> Program:
    with open_strict(file, what) as archive:
        inner = {n.partition("/")[2] for n in archive.namelist()}
        names = set(archive.namelist())
        if "models/model.json" in inner or "archive_format" in inner:
            if not trusted:
                check_archive(archive, what)
        elif "serialized_exported_program.json" in names:
            raise ModelFileError(f"{what} was exported by an old PyTorch", f"{_EXPORT} with PyTorch 2.11 or newer")
        elif "constants.pkl" in inner or any(n.startswith("code/") for n in inner):
            raise ModelFileError(f"{what} is a TorchScript archive", f"TorchScript is not read; {_EXPORT}")
        elif "data.pkl" in inner:
            pickled = [n for n in names if n.partition("/")[2] == "data.pkl"]
            found = _globals(read_member(archive, pickled[0], what), what)
            return _load_module(file, what, name, trusted, inputs, found)
        else:
            raise ModelFileError(f"{what} is a zip archive, but no PyTorch model", _EXPORT)
    if inputs is not None:
        raise UsageError(f"--inputs: {what} is an exported program and has its own", "leave --inputs out")
    return _load_exported(file, what, name)


def _globals(data: bytes, what: str) -> set[str]:
    try:
        return globals_of(data)
    except (ValueError, UnicodeDecodeError, OverflowError) as e:
        raise ModelFileError(f"{what} holds a damaged pickle: {e}", "save or download it again") from e


def _legacy_globals(file: IO[bytes], what: str) -> set[str]:
    """Globals of a file that is a bare pickle, or PyTorch's old format (several pickles one after another)."""
    found: set[str] = set()
    data = file.read()
    at = 0
    while at < len(data) and data[at : at + 1] == b"\x80":
        stream = io.BytesIO(data[at:])
        found |= _globals_of_stream(stream, what)
        at += stream.tell()
    file.seek(0)
    return found


def _globals_of_stream(stream: io.BytesIO, what: str) -> set[str]:
    start = stream.tell()
    import pickletools

    try:
        for _ in pickletools.genops(stream):
            pass
    except (ValueError, UnicodeDecodeError, OverflowError) as e:
        raise ModelFileError(f"{what} holds a damaged pickle: {e}", "save or download it again") from e
    end = stream.tell()
    return _globals(stream.getvalue()[start:end], what)


def _load_exported(file: IO[bytes], what: str, name: str) -> Program:
    file.seek(0)
    try:
        with quiet():
            exported = torch.export.load(file)
        # PyTorch would compile these strings from the file into a guard; the compiler checks shapes itself
        exported._guards_code = []
        return from_exported(exported, module=Exported(exported), name=name)
    except (
        RuntimeError, ValueError, AssertionError, LookupError, TypeError, AttributeError, NotImplementedError,
    ) as e:  # fmt: skip
        raise ModelFileError(
            f"{what} cannot be loaded by this PyTorch ({torch.__version__}): {type(e).__name__}: {str(e)[:200]}",
            "export it again with this version; on the CPU if the machine has no GPU",
        ) from e


def _load_module(file: IO[bytes], what: str, name: str, trusted: bool, inputs: str | None, found: set[str]) -> Program:
    """A pickled module; `found` are the globals that its pickle names."""
    if all(is_plain(n) for n in found):
        raise ModelFileError(
            f"{what} is a state dict (or plain tensors): weights without a model",
            f"build the model, load the weights into it, then {_EXPORT}",
        )
    if not trusted:
        classes = sorted(n for n in found if not is_plain(n))
        raise ModelFileError(
            f"{what} is a pickled object; to open it is to run it (it names {', '.join(classes[:3])})",
            f"if you trust it, pass --trust-pickle and --inputs 'f32[1,32,2048]'; better, {_EXPORT}",
        )
    if inputs is None:
        raise UsageError(f"{what} is a pickled module", "say what it takes: --inputs 'f32[1,32,2048],i64[1,32]'")
    import pickle

    file.seek(0)
    try:
        module = torch.load(file, map_location="cpu", weights_only=False)
    except (RuntimeError, ValueError, EOFError, AttributeError, ImportError, pickle.UnpicklingError) as e:
        raise ModelFileError(f"{what} cannot be unpickled: {type(e).__name__}: {e}", "import its classes first") from e
    if not isinstance(module, nn.Module):
        raise ModelFileError(f"{what} holds a {type(module).__name__}, not an nn.Module", _EXPORT)
    notes = (f"{name} was saved in training mode and is compiled in eval mode",) if module.training else ()
    program = capture(module.eval(), example_tensors(inputs), name=name)
    from dataclasses import replace

    return replace(program, notes=(*program.notes, *notes))


def example_tensors(spec: str) -> tuple[torch.Tensor, ...]:
    """Seeded example tensors of the types in `f32[1,32,2048],i64[1,32]`; integers are 0 or 1.

    UsageError shows the place that is not of that form.
    """
    found = _parse_inputs(spec)
    generator = torch.Generator().manual_seed(0)
    out: list[torch.Tensor] = []
    for name, dims in found:
        dtype = TORCH[name]
        if dtype.is_floating_point:
            out.append(torch.randn(dims, generator=generator).to(dtype))
        else:
            out.append(torch.randint(0, 2, dims, generator=generator).to(dtype))
    return tuple(out)


def _parse_inputs(spec: str) -> list[tuple[str, list[int]]]:
    """(element type, extents) of each input: `input = dtype "[" [number {"," number}] "]"`, separated by commas."""
    tokens = [(m.group(), m.start()) for m in _TOKEN.finditer(spec)] + [("", len(spec))]
    found: list[tuple[str, list[int]]] = []
    at = 0

    def take(fits: Callable[[str], object], wanted: str) -> str:
        nonlocal at
        token, start = tokens[at]
        if not fits(token):
            raise _misspelt(spec, start, wanted)
        at += 1
        return token

    while True:
        dtype = take(TORCH.__contains__, f"an element type ({', '.join(TORCH)})")
        take("[".__eq__, "the extents in brackets")
        dims: list[int] = []
        while tokens[at][0] != "]":
            dims.append(int(take(_NUMBER.fullmatch, "a number or ]")))
            if tokens[at][0] != "]":
                take(",".__eq__, "a comma or ]")
        at += 1
        found.append((dtype, dims))
        if at == len(tokens) - 1:
            return found
        take(",".__eq__, "a comma or the end")


def _misspelt(spec: str, at: int, wanted: str) -> UsageError:
    """The text with a mark under the place, counted from 1."""
    return UsageError(
        f"--inputs: expected {wanted} at character {at + 1}\n  {spec}\n  {' ' * at}^",
        "write each input as dtype[extent,…], with commas between them: f32[1,32],i64[4]",
    )
