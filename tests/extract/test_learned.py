"""The learned prior's file, its quarantine, and which prior answers."""

from __future__ import annotations

import re
import warnings
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from emmy.errors import StoreError, UsageError
from emmy.evidence.fit import dataset, fit
from emmy.extract.columns import Columns
from emmy.extract.features import NAMES, features
from emmy.extract.kinds import kinds
from emmy.extract.learned import CAUTION, POOLED, HeldOut, LearnedPrior
from emmy.extract.prior import predict_many, roofline
from emmy.extract.prior_file import file_name, load, save
from emmy.extract.priors import ANALYTIC, prior_of, prior_path
from emmy.extract.trees import LEAVES, Forest
from emmy.extract.work import analyse
from emmy.ir.config import KernelConfig
from emmy.ir.target import TARGETS
from tests import bodies as B
from tests.fitting import QUICK, measured_bodies
from tests.made_up import TARGET, legal


@pytest.fixture(scope="module")
def prior(tmp_path_factory) -> LearnedPrior:
    data = dataset(measured_bodies(tmp_path_factory.mktemp("learned") / "e.duckdb"))
    return fit(data, QUICK, (HeldOut("ab" * 8, "mma", 40, 0.9, 1.01, 0.8, 1.2),), TARGET.gpu, TARGET.capability)


BODIES = [B.linear(64, 256, 256), B.linear(4096, 4096, 4096), B.matvec(512, 512), B.attention(1, 16, 8, 512, 512, 128),
          B.rms_linear(512, 1024, 4096, factored=True), B.linear(33, 77, 5)]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_no_two_rows_tie_and_each_is_above_nothing(prior, number):
    body = BODIES[number]
    rows, work = legal(body), analyse(body)
    configs = [r.config for r in rows]
    for seconds in (prior.seconds(work, configs, TARGET), predict_many(work, configs, TARGET)):
        assert np.isfinite(seconds).all() and (seconds > 0).all()
        assert len(set(seconds.tolist())) == len({(c.family, c) for c in configs})


def test_features_are_named_and_finite(prior):
    work = analyse(BODIES[0])
    found = features(work, [r.config for r in legal(BODIES[0])], TARGET, roofline(work, TARGET))
    assert found.matrix.shape[1] == len(NAMES) == len(set(NAMES))
    assert np.isfinite(found.matrix).all()


def constant(*values: float) -> Forest:
    """A forest whose members say these values of every row."""
    leaf = np.zeros((len(values), LEAVES))
    leaf[:, 0] = values
    none = np.zeros(0)
    return Forest(len(values), none.astype(np.int16), none, none.astype(np.uint16), none.astype(np.int32), leaf)


def test_where_the_members_disagree_the_analytic_prior_answers():
    matrix, family = np.zeros((1, len(NAMES))), np.array(["mma"])
    kind, seen = np.array(["mma"]), frozenset({"mma"})
    agreed, split = (LearnedPrior("", 0, {POOLED: constant(*v)}, seen) for v in ((0.5, 0.5), (2.5, -1.5)))
    assert agreed.correction(matrix, family, kind)[0] == pytest.approx(0.5)
    assert abs(split.correction(matrix, family, kind)[0]) < 0.01
    assert LearnedPrior("", 0, {}).correction(matrix, family, kind)[0] == 0.0


def test_a_row_of_a_kind_that_was_not_measured_has_to_promise_more():
    matrix, family = np.zeros((3, len(NAMES))), np.array(["mma", "mma", "tile"])
    kind = np.array(["mma+direct", "mma+direct+splits", "tile+direct"])
    known = LearnedPrior("", 0, {POOLED: constant(-0.5, -0.5)}, frozenset({"mma+direct"}), {"mma": 0.7})
    assert known.correction(matrix, family, kind).tolist() == [-0.5, 0.7, CAUTION]


def test_kinds_tell_mechanisms_and_no_sizes():
    small, large = KernelConfig("mma", 128, 10), KernelConfig("mma", 256, 99, tile_m=128, stages=4)
    split, held = replace(small, splits=4), KernelConfig("row", 32, 1, reduce_threads=32, held=True)
    found = kinds(Columns([small, large, split, held])).tolist()
    assert found == ["mma+direct", "mma+direct", "mma+direct+splits", "row+held+direct+coop"]


def test_a_fit_knows_the_kinds_of_its_rows_and_no_others(prior):
    assert all(k.partition("+")[0] in ("mma", "row", "map", "wgmma", "tile", "plain", "attention") for k in prior.kinds)
    assert any(k.startswith("mma+direct") for k in prior.kinds) and prior.caution["mma"] >= 0.0


def test_a_file_gives_back_what_was_saved_without_pickle(prior, tmp_path):
    path = tmp_path / file_name("RTX 5090", 120)
    assert path.name == "prior_rtx-5090_sm120.npz"
    save(prior, path)
    with np.load(path, allow_pickle=False) as arrays:
        assert all(arrays[n].dtype.kind in "fiuU" for n in arrays.files)
    again = load(path)
    assert (
        again.report == prior.report
        and again.kinds == prior.kinds
        and list(again.forests) == list(prior.forests)
        and again.doubt() == ""
    )
    work, configs = analyse(BODIES[1]), [r.config for r in legal(BODIES[1])]
    assert np.array_equal(again.seconds(work, configs, TARGET), prior.seconds(work, configs, TARGET))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def spoiled(prior, tmp_path, **changed):
    path = tmp_path / "p.npz"
    save(prior, path)
    with np.load(path) as file:
        arrays = {**{n: file[n] for n in file.files}, **changed}
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": np.array("other")}, "no prior"), ({"version": np.array(99)}, "has version 99"),
        ({"features": np.array(["a"])}, "features of another Emmy"), ({"models": np.array(["cake"])}, "no family"),
        ({"all.leaf": np.full((3, LEAVES), np.nan)}, "all.leaf must be finite"),
        ({"all.leaf": np.zeros((3, 5))}, "all.leaf must be"), ({"all.threshold": None}, "all.threshold must be"),
        ({"all.tree": np.array([1 << 30])}, "all.tree must be"), ({"all.members": np.array(0)}, "all.members must be"),
        ({"report": np.zeros((1, 5))}, "report must be"), ({"gpu": np.array([1])}, "gpu must be"),
        ({"kinds": np.zeros(2)}, "kinds must be"), ({"caution": np.zeros(1)}, "caution must be"),
        ({"format": np.array([None], dtype=object)}, "no file of arrays"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_right_is_refused_with_a_reason(prior, tmp_path, changed, said):
    with pytest.raises(StoreError, match=said):
        load(spoiled(prior, tmp_path, **changed))


def test_no_file_and_no_archive_are_named(tmp_path):
    with pytest.raises(StoreError, match="cannot be read"):
        load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(StoreError, match="no file of arrays"):
        load(tmp_path / "text.npz")


def test_the_card_decides_which_prior_answers(prior, tmp_path):
    assert prior_of(TARGET, tmp_path) == (ANALYTIC, ())
    with pytest.raises(UsageError, match="emmy fit"):
        prior_of(TARGET, tmp_path, "learned")
    save(prior, prior_path(TARGET, tmp_path))
    chosen, notes = prior_of(TARGET, tmp_path)
    assert chosen.name == "learned prior" and notes == ()
    assert prior_of(TARGET, tmp_path, "analytic") == (ANALYTIC, ())
    assert prior_of(TARGETS["sm_80"], tmp_path) == (ANALYTIC, ())
    with pytest.raises(UsageError, match="is of H200"):
        prior_of(TARGETS["sm_80"], tmp_path, str(prior_path(TARGET, tmp_path)))


def test_a_prior_that_ranks_badly_is_quarantined(prior, tmp_path):
    bad = replace(prior.report[0], rank=0.2)
    path = prior_path(TARGET, tmp_path)
    save(replace(prior, report=(bad,)), path)
    chosen, (note,) = prior_of(TARGET, tmp_path)
    assert chosen is ANALYTIC and "quarantined" in note and "0.20" in note
    save(replace(prior, report=(replace(prior.report[0], regret=2.0),)), path)
    assert "regret is 2.000" in prior_of(TARGET, tmp_path)[1][0]
    save(replace(prior, answers=prior.answers + 1.0), path)
    assert "answers that it was written with" in prior_of(TARGET, tmp_path)[1][0]
    chosen, (note,) = prior_of(TARGET, tmp_path, str(path))
    assert chosen.name == "learned prior" and "although" in note


def test_a_damaged_file_costs_the_tier_not_the_compile(tmp_path):
    prior_path(TARGET, tmp_path).write_bytes(b"\x00" * 40)
    chosen, (note,) = prior_of(TARGET, tmp_path)
    assert chosen is ANALYTIC and "the analytic prior answers" in note
    with pytest.raises(StoreError):
        prior_of(TARGET, tmp_path, "learned")


def repacked(path, changes=None, method=zipfile.ZIP_STORED, twice=()):
    with zipfile.ZipFile(path) as old:
        members = {n: old.read(n) for n in old.namelist()}
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as new:
        warnings.simplefilter("ignore")
        for name, data in members.items():
            new.writestr(name, (changes or {}).get(name, lambda d: d)(data))
        for name in twice:
            new.writestr(name, members[name])


LEAF = f"{POOLED}.leaf.npy"


@pytest.mark.parametrize(
    "changes",
    [
        {LEAF: lambda d: b"hello"},
        {LEAF: lambda d: d.replace(b"'fortran_order'", b"[[[[[[[[[[[[[[[")},
        {LEAF: lambda d: re.sub(rb"'shape': \(\d+, \d+\), ", b"'shape': (999999999,), ", d)},
        {LEAF: lambda d: d.replace(b"<f8", b"|O8")},
        {LEAF: lambda d: d[:-8]},
        {LEAF: lambda d: d[:-8] + np.float64(1e308).tobytes()},
        {"gpu.npy": lambda d: d[:-4] + b"\xff\xff\xff\x7f"},
    ],
)
def test_a_member_that_is_no_array_of_ours_is_refused(prior, tmp_path, changes):
    path = tmp_path / "p.npz"
    save(prior, path)
    repacked(path)
    load(path)
    repacked(path, changes)
    with pytest.raises(StoreError, match=r"p\.npz"):
        load(path)


def test_an_archive_that_numpy_would_not_write_is_refused(prior, tmp_path):
    path = tmp_path / "p.npz"
    save(prior, path)
    repacked(path, method=zipfile.ZIP_LZMA)
    with pytest.raises(StoreError, match="packed"):
        load(path)
    save(prior, path)
    repacked(path, twice=[LEAF])
    with pytest.raises(StoreError, match="stands twice"):
        load(path)
    save(prior, path)
    data = bytearray(path.read_bytes())
    for at in (m.start() for m in re.finditer(b"PK\x01\x02", bytes(data))):
        data[at + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="encrypted"):
        load(path)
