"""The one door of the front ends: a file, a Hugging Face model, a checkpoint folder, or a line of code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from emmy.arguments import expanded, require
from emmy.errors import UsageError

if TYPE_CHECKING:
    from emmy.frontend.program import Program


def load(
    source: str | os.PathLike[str] | None,
    code: str | None = None,
    *,
    layer: int | None = None,
    seq_len: int | None = None,
    cache_len: int | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    seed: int = 0,
    trust_pickle: bool = False,
    inputs: str | None = None,
) -> Program:
    """The program that the user named.

    Args:
        source: path of a model file or checkpoint folder, or a Hugging Face model name.
        code: Python code whose last expression is compiled; excludes `source`.
        layer, seq_len, cache_len, batch, dtype, seed: only for Hugging Face models and folders; None is the default of
            `huggingface.load_hf`.
        trust_pickle, inputs: only for model files.
    Raises:
        UsageError: neither or both were given, the source is none of these, or an option does not fit it.
        ModelFileError, UnsupportedError: as the front ends say.
    """
    for name, value in (("source", source), ("code", code), ("dtype", dtype), ("inputs", inputs)):
        if value is not None:
            require(name, value, (str, os.PathLike) if name == "source" else str, "text")
    for name, number in (("layer", layer), ("seq_len", seq_len), ("cache_len", cache_len), ("batch", batch)):
        if number is not None:
            require(name, number, int, "a whole number")
    require("seed", seed, int, "a whole number")
    require("trust_pickle", trust_pickle, bool, "True or False")
    source = None if source is None else os.fspath(source)
    options: dict[str, Any] = {
        "layer": layer,
        "seq_len": seq_len,
        "cache_len": cache_len,
        "batch": batch,
        "dtype": dtype,
    }
    given = {k: v for k, v in options.items() if v is not None}
    if (source is None) == (code is None):
        raise UsageError("name one model: a file, a folder, a Hugging Face name, or -c CODE", "see --help")
    if code is not None:
        _refuse({**given, "trust_pickle": trust_pickle, "inputs": inputs}, "a line of code")
        from emmy.frontend.code import load_code

        return load_code(code)
    assert source is not None
    if not source.strip():
        raise UsageError("the name of the model is empty", "name a file, a folder or a Hugging Face model")
    path = expanded(source)
    if path.is_file() or path.suffix in (".pt", ".pt2", ".pth"):
        _refuse(given, "a model file")
        from emmy.frontend.files import load_file

        return load_file(path, trust_pickle, inputs)
    if not path.is_dir() and source.startswith(("/", "./", "../", "~")):
        raise UsageError(f"there is no file or folder {source}", "check the path")
    _refuse({"trust_pickle": trust_pickle, "inputs": inputs}, "a Hugging Face model")
    from emmy.frontend.huggingface import load_hf

    return load_hf(source, seed=seed, **given)


def _refuse(options: Mapping[str, object], what: str) -> None:
    wrong = [f"--{k.replace('_', '-')}" for k, v in options.items() if v is not None and v is not False]
    if wrong:
        raise UsageError(f"{' '.join(wrong)} does not fit {what}", "leave it out")
