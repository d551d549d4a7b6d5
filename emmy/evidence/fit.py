"""Fits the learned prior to measured rows, and judges it on bodies that it did not see.

    dataset(bodies)               features of every measured row, body by body
    train(data, recipe)           an ensemble of trees a family (few rows: one for all)
    cross_validate(data, recipe)  each body predicted by a model that saw neither it nor its programs' other bodies
    folds_of(bodies, recipe)      the same as `emmy.evidence.measured.Folds`, for `emmy eval regret`

The target is log(measured / analytic), which is log(latency / floor) counted from the analytic prior's: trees cannot
extrapolate, so what they add to has to.  Rows near a body's best weigh most, since the choice is among them, and every
body weighs alike.  scikit-learn is needed here and nowhere else.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from emmy.errors import EmmyError, StoreError
from emmy.evidence.measured import Folds, MeasuredBody, Predict, analytic, predictor
from emmy.extract.features import NAMES, Featured, features
from emmy.extract.learned import MOST, POOLED, HeldOut, LearnedPrior
from emmy.extract.prior import roofline
from emmy.extract.trees import LEAVES, Forest
from emmy.extract.work import analyse

Array = npt.NDArray[np.float64]

FOLDS: Final = 8  # of bodies that belong to no model
FEWEST_BODIES: Final = 4
FEWEST_ROWS: Final = 60
SAMPLE: Final = 32  # rows whose answers a file repeats
KNOWN: Final = 20  # measured rows that make their kind known
BELOW: Final = 90.0  # percentile of measured / analytic that the prior is cautious by


@dataclass(frozen=True, slots=True)
class Recipe:
    """How trees are grown.  `rows`: a family with fewer has no model of its own.  `near`: weight (best / time)^near.

    `monotone`: padding and traffic beyond what a body needs never make a row faster.
    """

    members: int = 5
    rounds: int = 30
    leaves: int = LEAVES
    rate: float = 0.15
    smallest: int = 12
    l2: float = 2.0
    share: float = 0.8
    columns: float = 0.5
    rows: int = 200
    near: float = 1.0
    monotone: bool = True
    by_family: bool = True


# What `emmy fit --search` tries; the first is the usual one.
RECIPES: Final[Mapping[str, Recipe]] = {
    "usual": Recipe(),
    "free": Recipe(monotone=False),
    "small trees": Recipe(leaves=8),
    "one model": Recipe(by_family=False),
    "long": Recipe(rounds=70, rate=0.1),
    "near the best": Recipe(near=2.0),
}


@dataclass(frozen=True)
class Rows:
    """The measured rows of one body; `groups` are the programs (models, kinds of cases) that it belongs to."""

    body: MeasuredBody
    featured: Featured
    measured: Array
    groups: frozenset[str]

    @property
    def matrix(self) -> Array:
        return self.featured.matrix

    @property
    def analytic(self) -> Array:
        return self.featured.seconds

    @property
    def family(self) -> npt.NDArray[np.str_]:
        return self.featured.family

    def weights(self, near: float) -> Array:
        weight = (self.measured.min() / self.measured) ** near
        found: Array = weight / weight.sum() * np.sqrt(len(weight))
        return found


def dataset(bodies: Iterable[MeasuredBody]) -> list[Rows]:
    """Features of every measured row."""
    found = []
    for b in bodies:
        work = analyse(b.body, dict(b.sizes))
        floor = roofline(work, b.target)
        f = features(work, [r.scheduled.config for r in b.rows], b.target, floor)
        seconds = np.array([r.seconds for r in b.rows])
        found.append(Rows(b, f, seconds, groups_of(b)))
    return found


def groups_of(body: MeasuredBody) -> frozenset[str]:
    """What is held out together with a body.

    Every body of a model that it is part of (a program called MODEL@SHAPE, where several bodies carry MODEL), and of
    its fold: bodies are dealt to FOLDS by their hash.
    """
    models = {p.partition("@")[0] for p in body.programs if "@" in p}
    return frozenset({*models, body.body.hash})


def _models(data: Sequence[Rows]) -> frozenset[str]:
    """Groups that are models: their programs have several bodies each."""
    seen: dict[str, set[str]] = {}
    for d in data:
        for p in d.body.programs:
            seen.setdefault(p, set()).add(d.body.body.hash)
    return frozenset(p.partition("@")[0] for p, bodies in seen.items() if len(bodies) >= FEWEST_BODIES)


def held_out(data: Sequence[Rows]) -> list[frozenset[str]]:
    """Keys of each body: two bodies that share one are never on both sides of a fit."""
    models = _models(data)
    keys = []
    for d in data:
        mine = {g for g in d.groups if g in models}
        if not mine:
            digest = hashlib.sha256(d.body.body.hash.encode()).digest()[0]
            mine = {f"fold {digest % FOLDS}"}
        keys.append(frozenset({*mine, d.body.body.hash}))
    return keys


# ---- training --------------------------------------------------------------------------------------------------------


def train(data: Sequence[Rows], recipe: Recipe = Recipe(), seed: int = 0, jobs: int | None = None) -> dict[str, Forest]:
    """Models by family, and POOLED.  Empty where too little was measured to learn from.

    At most `jobs` threads work (None: one a core).
    """
    if len(data) < FEWEST_BODIES or sum(len(d.measured) for d in data) < FEWEST_ROWS:
        return {}
    forests = {POOLED: _forest(data, recipe, seed, None, jobs)}
    families = sorted({str(f) for d in data for f in np.unique(d.family)}) if recipe.by_family else []
    for family in families:
        mine = [d for d in data if (d.family == family).any()]
        if sum(int((d.family == family).sum()) for d in mine) >= recipe.rows and len(mine) >= FEWEST_BODIES:
            forests[family] = _forest(mine, recipe, seed, family, jobs)
    return forests


def known_kinds(data: Sequence[Rows]) -> frozenset[str]:
    """Kinds of which enough rows were measured."""
    if not data:
        return frozenset()
    found, counts = np.unique(np.concatenate([d.featured.kind for d in data]), return_counts=True)
    return frozenset(str(k) for k, n in zip(found, counts, strict=True) if n >= KNOWN)


def caution(data: Sequence[Rows]) -> dict[str, float]:
    """By family, how much slower than the analytic prior says nine of ten measured rows are at most (logarithm)."""
    if not data:
        return {}
    family = np.concatenate([d.family for d in data])
    error = np.log(np.concatenate([d.measured / d.analytic for d in data]))
    return {
        str(f): float(np.clip(np.percentile(error[family == f], BELOW), 0.0, MOST)) for f in np.unique(family)
    }  # fmt: skip


def _forest(data: Sequence[Rows], recipe: Recipe, seed: int, family: str | None, jobs: int | None) -> Forest:
    rng = np.random.default_rng(seed)
    kept = max(3, round(recipe.share * len(data)))
    parts = [[data[k] for k in rng.permutation(len(data))[:kept]] for _ in range(recipe.members)]
    with ThreadPoolExecutor(min(recipe.members, jobs or os.cpu_count() or 1)) as pool:
        return _joined(list(pool.map(lambda p: _member(p[1], recipe, seed + p[0], family), enumerate(parts))))


def _member(data: Sequence[Rows], recipe: Recipe, seed: int, family: str | None) -> tuple[Any, float]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    picked = [d.family == family if family else np.ones(len(d.measured), bool) for d in data]
    x = np.concatenate([d.matrix[p] for d, p in zip(data, picked, strict=True)])
    y = np.concatenate([np.log(d.measured / d.analytic)[p] for d, p in zip(data, picked, strict=True)])
    w = np.concatenate([d.weights(recipe.near)[p] for d, p in zip(data, picked, strict=True)])
    monotone = np.zeros(len(NAMES), np.int8)
    if recipe.monotone:
        for name in ("shape_padding", "shape_reread", "shape_excess"):
            monotone[NAMES.index(name)] = 1
    model = HistGradientBoostingRegressor(
        learning_rate=recipe.rate, max_iter=recipe.rounds, max_leaf_nodes=recipe.leaves, early_stopping=False,
        min_samples_leaf=min(recipe.smallest, max(2, len(y) // 8)), l2_regularization=recipe.l2, max_bins=127,
        max_features=recipe.columns, monotonic_cst=monotone if recipe.monotone else None, random_state=seed,
    )  # fmt: skip
    # A fit is too small for OpenMP's threads, which wait for each other on a busy machine.  Each thread that enters
    # OpenMP has a limit of its own, so it is set here and not around the pool.
    with threadpool_limits(1):
        model.fit(x, y, sample_weight=w / w.mean())
        _same(model, x[:: max(1, len(x) // 200)])
    return model, float(np.ravel(model._baseline_prediction)[0])


def _same(model: Any, x: Array) -> None:
    """The arrays must say what scikit-learn says: they are read from its private fields."""
    ours = _joined([(model, float(np.ravel(model._baseline_prediction)[0]))]).values(x)[:, 0]
    if not np.allclose(ours, model.predict(x), atol=1e-6):
        raise EmmyError("scikit-learn keeps its trees otherwise than expected", "use scikit-learn 1.6 to 1.9")


def _joined(members: Sequence[tuple[Any, float]]) -> Forest:
    """Trees of all members as one forest; a member's mean is added to the leaves of its first tree."""
    feature: list[int] = []
    threshold: list[float] = []
    mask: list[int] = []
    tree: list[int] = []
    leaves: list[list[float]] = []
    for model, baseline in members:
        for k, (grown,) in enumerate(model._predictors):
            values: list[float] = []
            _walk(grown.nodes, 0, values, feature, threshold, mask)
            tree += [len(leaves)] * (len(feature) - len(tree))
            values = [v + baseline for v in values] if k == 0 else values
            leaves.append(values + [0.0] * (LEAVES - len(values)))
    return Forest(
        len(members), np.array(feature, np.int16), np.array(threshold, np.float64), np.array(mask, np.uint16),
        np.array(tree, np.int32), np.array(leaves, np.float64),
    )  # fmt: skip


def _walk(
    nodes: Any, at: int, values: list[float], feature: list[int], threshold: list[float], mask: list[int]
) -> None:
    """Leaves from left to right; a node's mask clears the leaves of its left subtree."""
    node = nodes[at]
    if node["is_leaf"]:
        values.append(float(node["value"]))
        return
    first = len(values)
    _walk(nodes, int(node["left"]), values, feature, threshold, mask)
    left = sum(1 << k for k in range(first, len(values)))
    feature.append(int(node["feature_idx"]))
    threshold.append(float(node["num_threshold"]))
    mask.append(0xFFFF & ~left)
    _walk(nodes, int(node["right"]), values, feature, threshold, mask)


# ---- judging ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fold:
    """One fold that was fitted: the `number`-th of `total`, without bodies of `left_out`, on `bodies`, in `seconds`."""

    number: int
    total: int
    left_out: tuple[str, ...]
    bodies: int
    seconds: float


@dataclass
class Fitter:
    """Models by what they may not have seen; each is trained once.  `observe` is told of each; `jobs` as in `train`."""

    data: Sequence[Rows]
    recipe: Recipe = Recipe()
    seed: int = 0
    observe: Callable[[Fold], None] | None = None
    jobs: int | None = None
    known: dict[frozenset[str], LearnedPrior] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = held_out(self.data)
        self.by_body = {d.body.body.hash: k for d, k in zip(self.data, self.keys, strict=True)}

    def without(self, keys: frozenset[str]) -> LearnedPrior:
        """The prior of all bodies that share none of these keys."""
        asked = self._asked(keys)
        if asked not in self.known:
            began = time.monotonic()
            seen = [d for d, mine in zip(self.data, self.keys, strict=True) if not (mine & asked or mine & keys)]
            forests = train(seen, self.recipe, self.seed, self.jobs)
            self.known[asked] = LearnedPrior("", 0, forests, known_kinds(seen), caution(seen))
            if self.observe:
                total = len({self._asked(k) for k in self.keys})
                left_out, seconds = tuple(sorted(asked)), time.monotonic() - began
                self.observe(Fold(len(self.known), total, left_out, len(seen), seconds))
        return self.known[asked]

    def _asked(self, keys: frozenset[str]) -> frozenset[str]:
        """The fold of a body with these keys: what it shares with others, or itself where that is nothing."""
        return frozenset(k for k in keys if k not in self.by_body) or keys

    def prior(self, body: MeasuredBody) -> LearnedPrior:
        """The prior that has not seen this body, nor the other bodies of its model or fold."""
        return self.without(self.by_body[body.body.hash])

    def folds(self, body: MeasuredBody) -> Predict:
        prior = self.prior(body)
        return predictor(prior.seconds) if prior.forests else analytic


def folds_of(
    bodies: Iterable[MeasuredBody], recipe: Recipe = Recipe(), observe: Callable[[Fold], None] | None = None,
    jobs: int | None = None,
) -> Folds:  # fmt: skip
    return Fitter(dataset(bodies), recipe, observe=observe, jobs=jobs).folds


def cross_validate(fitter: Fitter) -> tuple[HeldOut, ...]:
    """Each body with at least three rows, ranked by the model that has not seen it and by the analytic prior."""
    return tuple(judged(d, fitter.prior(d.body)) for d in fitter.data if len(d.measured) >= 3)


def judged(d: Rows, prior: LearnedPrior) -> HeldOut:
    predicted = prior.corrected(d.featured)
    (rank, regret), (other_rank, other_regret) = (_ranked(p, d.measured) for p in (predicted, d.analytic))
    best = d.body.best.scheduled.family
    return HeldOut(d.body.body.hash, best, len(d.measured), rank, regret, other_rank, other_regret)


def compared(installed: LearnedPrior, data: Sequence[Rows]) -> tuple[HeldOut, ...]:
    """An installed prior on the same bodies: what its own report says of those that it was trained on (they were held
    out there), and what it says now of the others."""
    known = {h.body: h for h in installed.report}
    return tuple(known.get(d.body.body.hash) or judged(d, installed) for d in data if len(d.measured) >= 3)


def geometric(values: Sequence[float]) -> float:
    """Geometric mean; 1 of nothing."""
    return float(np.exp(np.mean(np.log(values)))) if len(values) else 1.0


def _ranked(predicted: Array, measured: Array) -> tuple[float, float]:
    """(rank correlation, 0 where there is none; time of the row predicted best over the best)."""
    mine, theirs = (np.argsort(np.argsort(x, kind="stable"), kind="stable") for x in (predicted, measured))
    rank = float(np.atleast_2d(np.corrcoef(np.stack([mine, theirs])))[0, 1])
    return rank, float(measured[int(np.argmin(predicted))] / measured.min())


def fit(
    data: Sequence[Rows], recipe: Recipe, report: tuple[HeldOut, ...], gpu: str, capability: int,
    jobs: int | None = None,
) -> LearnedPrior:  # fmt: skip
    """The prior of all bodies, with its report.  StoreError where too little was measured."""
    forests = train(data, recipe, jobs=jobs)
    if not forests:
        rows = sum(len(d.measured) for d in data)
        raise StoreError(
            f"{rows} measured rows of {len(data)} bodies are too few to learn from",
            f"measure at least {FEWEST_ROWS} rows of {FEWEST_BODIES} bodies with `emmy tune`",
        )
    every = np.concatenate([d.matrix for d in data])
    sample = every[np.linspace(0, len(every) - 1, min(SAMPLE, len(every))).astype(int)]
    answers = forests[POOLED].values(sample)
    return LearnedPrior(gpu, capability, forests, known_kinds(data), caution(data), report, sample, answers)
