"""Files of learned priors: `golden/prior_<gpu>_sm<capability>.npz`.

A file holds arrays only and is read without pickle; it names the features and is refused where they are not today's.
Beside the trees it holds the kinds of rows that were measured, the model's own report (for bodies that were held out in
turn, the rank correlation and regret of both priors) and some of its answers.
"""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from emmy.errors import StoreError
from emmy.extract.features import FAMILIES, NAMES
from emmy.extract.files import replacing
from emmy.extract.learned import MOST, POOLED, HeldOut, LearnedPrior
from emmy.extract.trees import LEAVES, Forest

Array = npt.NDArray[np.float64]

FORMAT: Final = "emmy-prior"
VERSION: Final = 2
MAX_BYTES: Final = 32 << 20
_ENCRYPTED: Final = 1  # bit of a zip member's flags
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADER: Final = re.compile(
    rb"\{'descr': '([<|](?:[fiu][1248]|U[1-9]\d{0,3}))', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,9},? ?){0,3})\), \} *\n"
)
_LAST_LETTER: Final = 0x10FFFF  # of Unicode
# The largest leaf that is believed: in logarithms, so that no sum of leaves overflows.
_MOST_LEAF: Final = 100.0
_DO: Final = "fit it again with `emmy fit`, or use EMMY_PRIOR=analytic"
_REPORT: Final = ("rows", "rank", "regret", "analytic_rank", "analytic_regret")


def file_name(gpu: str, capability: int) -> str:
    return f"prior_{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}_sm{capability}.npz"


def save(prior: LearnedPrior, path: Path) -> None:
    """Write the file; it appears whole or not at all.  StoreError where it cannot be written."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "format": np.array(FORMAT), "version": np.array(VERSION), "gpu": np.array(prior.gpu),
        "capability": np.array(prior.capability), "features": np.array(NAMES), "models": np.array(list(prior.forests)),
        "kinds": np.array(sorted(prior.kinds), np.str_), "cautious": np.array(sorted(prior.caution), np.str_),
        "caution": np.array([prior.caution[f] for f in sorted(prior.caution)], np.float64),
        "report_names": np.array([(r.body, r.family) for r in prior.report], np.str_).reshape(-1, 2),
        "report": np.array([[getattr(r, n) for n in _REPORT] for r in prior.report], np.float64).reshape(-1, 5),
        "sample": np.zeros((0, len(NAMES))) if prior.sample is None else prior.sample,
        "answers": np.zeros((0, 0)) if prior.answers is None else prior.answers,
    }  # fmt: skip
    for name, f in prior.forests.items():
        arrays |= {
            f"{name}.members": np.array(f.members), f"{name}.feature": f.feature, f"{name}.threshold": f.threshold,
            f"{name}.mask": f.mask, f"{name}.tree": f.tree, f"{name}.leaf": f.leaf,
        }  # fmt: skip
    try:
        with replacing(path) as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise StoreError(f"prior {path} cannot be written: {error.strerror}", "name another file") from error


def load(path: Path) -> LearnedPrior:
    """The file's model, every array checked.  StoreError says what is wrong."""
    try:
        arrays = _arrays(path)
    except OSError as error:
        raise StoreError(f"prior {path} cannot be read: {error.strerror or error}", _DO) from error
    except (ValueError, TypeError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise StoreError(f"prior {path} is no file of arrays: {error}", _DO) from error
    check = _Check(path, arrays)
    if check.text("format") != FORMAT:
        raise StoreError(f"{path} is no prior (no format {FORMAT!r})", _DO)
    if check.whole("version", 0, 1 << 30) != VERSION:
        raise StoreError(f"prior {path} has version {check.whole('version', 0, 1 << 30)}, not {VERSION}", _DO)
    if tuple(check.texts("features", 1).tolist()) != NAMES:
        raise StoreError(f"prior {path} was fitted on features of another Emmy", _DO)
    names = check.texts("models", 1).tolist()
    if not names:
        raise check.wrong("models", "the name of a family or more")
    if not set(names) <= {POOLED, *FAMILIES}:
        raise StoreError(f"prior {path} has models of no family: {', '.join(names)[:80]}", _DO)
    forests = {name: check.forest(name) for name in names}
    report, caution = check.report(), check.caution()
    sample, answers = check.numbers("sample", 2), check.numbers("answers", 2)
    whole = POOLED in forests and len(sample) and answers.shape == (len(sample), forests[POOLED].members)
    if len(sample) and (not whole or sample.shape[1] != len(NAMES)):
        raise check.wrong("sample", "a matrix of features, with as many answers")
    return LearnedPrior(
        check.text("gpu"), check.whole("capability", 50, 999), forests,
        frozenset(map(str, check.texts("kinds", 1))), caution, report, sample if whole else None,
        answers if whole else None,
    )  # fmt: skip


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(i.file_size for i in members) > 4 * MAX_BYTES:
            raise ValueError(f"it unpacks to more than {4 * MAX_BYTES >> 20} MiB")
        names = [i.filename for i in members]
        if len(set(names)) < len(names) or not all(n.endswith(".npy") for n in names):
            raise ValueError("a member stands twice, or is no array")
        if any(i.flag_bits & _ENCRYPTED or i.compress_type not in _METHODS for i in members):
            raise ValueError("a member is encrypted, or packed in a way that numpy does not use")
        return {n.removesuffix(".npy"): _array(n, archive.read(n)) for n in names}


def _array(name: str, data: bytes) -> npt.NDArray[Any]:
    """A member in numpy's format 1.0.  Its header is matched, not evaluated, and may not promise more than there is."""
    length = int.from_bytes(data[8:10], "little")
    found = _HEADER.fullmatch(data[10 : 10 + length])
    if data[:8] != b"\x93NUMPY\x01\x00" or found is None:
        raise ValueError(f"{name} is no array of numbers or texts")
    dtype = np.dtype(found[1].decode())
    shape = tuple(int(n) for n in found[3].decode().split(",") if n.strip())
    if math.prod(shape) * dtype.itemsize != len(data) - 10 - length:
        raise ValueError(f"{name} is not as long as its shape")
    if dtype.kind == "U" and (np.frombuffer(data, "<u4", offset=10 + length) > _LAST_LETTER).any():
        raise ValueError(f"{name} holds no text")
    flat = np.ndarray(shape, dtype, data, 10 + length, order="F" if found[2] == b"True" else "C")
    return flat.copy()


class _Check:
    """Reads arrays by name and says which one is wrong."""

    def __init__(self, path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.path, self.arrays = path, arrays

    def wrong(self, name: str, expected: str) -> StoreError:
        return StoreError(f"prior {self.path}: {name} must be {expected}", _DO)

    def get(self, name: str, kinds: str, rank: int, expected: str) -> npt.NDArray[Any]:
        found = self.arrays.get(name)
        if found is None or found.dtype.kind not in kinds or found.ndim != rank:
            raise self.wrong(name, expected)
        return found

    def text(self, name: str) -> str:
        return str(self.get(name, "U", 0, "a text"))

    def texts(self, name: str, rank: int) -> npt.NDArray[np.str_]:
        return self.get(name, "U", rank, f"texts in {rank} dimensions")

    def whole(self, name: str, low: int, high: int) -> int:
        value = int(self.get(name, "iu", 0, "a whole number"))
        if not low <= value <= high:
            raise self.wrong(name, f"from {low} to {high}")
        return value

    def numbers(self, name: str, rank: int) -> Array:
        found = self.get(name, "f", rank, f"numbers in {rank} dimensions").astype(np.float64)
        if not np.isfinite(found).all():
            raise self.wrong(name, "finite")
        return found

    def indices(self, name: str, count: int, below: int) -> npt.NDArray[np.int64]:
        found = self.get(name, "iu", 1, "whole numbers")
        if len(found) != count or not all(0 <= int(x) < below for x in found):
            raise self.wrong(name, f"{count} whole numbers from 0 to {below - 1}")
        return found.astype(np.int64)

    def forest(self, name: str) -> Forest:
        leaf = self.numbers(f"{name}.leaf", 2)
        if (np.abs(leaf) > _MOST_LEAF).any():
            raise self.wrong(f"{name}.leaf", f"from -{_MOST_LEAF:g} to {_MOST_LEAF:g}")
        members = self.whole(f"{name}.members", 1, 1000)
        if leaf.shape[1] != LEAVES or not len(leaf) or len(leaf) % members or len(leaf) > 100_000:
            raise self.wrong(f"{name}.leaf", f"[trees, {LEAVES}], as many trees for each of {members} members")
        threshold = self.numbers(f"{name}.threshold", 1)
        nodes = len(threshold)
        return Forest(
            members,
            self.indices(f"{name}.feature", nodes, len(NAMES)).astype(np.int16),
            threshold,
            self.indices(f"{name}.mask", nodes, 1 << LEAVES).astype(np.uint16),
            self.indices(f"{name}.tree", nodes, len(leaf)).astype(np.int32),
            leaf,
        )

    def caution(self) -> dict[str, float]:
        names, values = self.texts("cautious", 1), self.numbers("caution", 1)
        if len(names) != len(values) or not set(names.tolist()) <= set(FAMILIES) or (np.abs(values) > MOST).any():
            raise self.wrong("caution", f"a number of at most {MOST:g} for each family that it names")
        return dict(zip(map(str, names), map(float, values), strict=True))

    def report(self) -> tuple[HeldOut, ...]:
        names, values = self.texts("report_names", 2), self.numbers("report", 2)
        if names.shape != (len(values), 2) or values.shape[1] != 5 or (values[:, [2, 4]] < 1.0 - 1e-9).any():
            raise self.wrong("report", "a line of five numbers for each body, regrets of at least 1")
        return tuple(
            HeldOut(str(n[0]), str(n[1]), int(v[0]), *map(float, v[1:])) for n, v in zip(names, values, strict=True)
        )
