"""The one place that touches egglog: rule files in, facts in, one ruleset at a time, rows out.

Rule files are read as s-expressions first, so that a rule can be held by name and every action that builds an e-node
also records the rule that built it (`by_<Constructor>` relations: every rule that built it, so that what is told does
not depend on the order of rules and rows).  Facts travel as TSV files, which egglog loads in linear time; nothing large
is ever parsed as program text.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from egglog import bindings

from emmy.errors import EmmyError

Sexp = str | list["Sexp"]
_SPAN: Final = bindings.EgglogSpan(bindings.SrcFile(None, ""), 0, 0)
_TOKEN: Final = re.compile(r'"[^"]*"|[()]|[^\s()]+')


class EggError(EmmyError):
    """egglog refused a rule file or a run."""


def read_sexps(text: str) -> list[Any]:
    """Commands of an egglog file as nested lists; comments dropped."""
    stack: list[list[Any]] = [[]]
    for line in text.splitlines():
        for token in _TOKEN.findall(_strip_comment(line)):
            if token == "(":
                stack.append([])
            elif token == ")":
                done = stack.pop()
                if not stack:
                    raise EggError("unbalanced ')' in a rule file", f"near {line!r}")
                stack[-1].append(done)
            else:
                stack[-1].append(token)
    if len(stack) != 1:
        raise EggError("missing ')' at the end of a rule file", "")
    return stack[0]


def _strip_comment(line: str) -> str:
    quoted = False
    for i, c in enumerate(line):
        if c == '"':
            quoted = not quoted
        elif c == ";" and not quoted:
            return line[:i]
    return line


@contextmanager
def _scratch(text: str, suffix: str) -> Iterator[str]:
    """The path of a file that holds `text` and is gone afterwards."""
    with tempfile.NamedTemporaryFile("w", prefix="emmy-", suffix=suffix) as file:
        file.write(text)
        file.flush()
        yield file.name


def show(sexp: Any) -> str:
    return sexp if isinstance(sexp, str) else "(" + " ".join(map(show, sexp)) + ")"


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule as its file has it: `doc` is the comment block above it (before -> after, numerics class)."""

    name: str
    ruleset: str
    file: str
    numerics: str
    doc: str
    text: str


NUMERICS: Final = ("exact", "rounds-later", "reassociates", "approximates", "analysis")


# Rulesets that derive facts for other rules and change no term.
ANALYSES: Final = ("analysis", "load", "free", "mark")


def rules_in(path: Path) -> list[Rule]:
    """Every rule of a file with its comment, which also speaks for the rules right below it, up to the next comment or
    blank line.  The comment's last word is its numerics class; analyses have none."""
    found: list[Rule] = []
    doc: list[str] = []
    spoken, buffer = False, ""  # whether a command followed the comment; lines of the command at hand
    for line in path.read_text().splitlines():
        if line.startswith(";") and not buffer:
            doc, spoken = [*([] if spoken else doc), line.lstrip("; ").rstrip()], False
            continue
        buffer += line + "\n"
        if not buffer.strip():
            doc, buffer = [], ""
            continue
        code = "\n".join(map(_strip_comment, buffer.splitlines()))
        if code.count("(") != code.count(")"):
            continue
        found += [_rule(c, path.name, doc, buffer) for c in read_sexps(buffer) if c[0] == "rule"]
        spoken, buffer = True, ""
    return found


def _rule(command: list[Any], file: str, doc: list[str], text: str) -> Rule:
    words, ruleset = " ".join(doc).split(), _option(command, ":ruleset")
    classed = bool(words) and words[-1] in NUMERICS and ruleset not in ANALYSES
    return Rule(_option(command, ":name"), ruleset, file, words[-1] if classed else "analysis", "\n".join(doc), text)


def _option(command: list[Any], key: str) -> str:
    return str(command[command.index(key) + 1]).strip('"') if key in command else ""


@dataclass(slots=True)
class Signature:
    """Argument sorts and result sort of a constructor, function or relation (relations return `Unit`)."""

    inputs: list[str]
    output: str
    constructor: bool


class _Graves(threading.local):
    """For each thread, the e-graphs it made whose last reference another thread let go.

    `kept` has the lists of all threads: what belongs to one that has ended can never be dropped.
    """

    kept: ClassVar[list[list[Any]]] = []

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.kept.append(self.graphs)


_GRAVES: Final = _Graves()


@dataclass(slots=True)
class Egg:
    """An e-graph with some rule files loaded.  `held` rules are left out; `constants` replace `@NAME@` in the text.

    egglog's objects must die on the thread that made them, and Python collects an object that is part of a cycle (a
    caught exception with its frames makes one) on whatever thread runs then.  Such a graph waits for its own thread,
    which drops it when it makes its next one.
    """

    held: frozenset[str] = frozenset()
    constants: dict[str, int] = field(default_factory=dict)
    provenance: frozenset[str] = frozenset()
    graph: Any = field(default_factory=bindings.EGraph)
    signatures: dict[str, Signature] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    # text by text, in the order in which they were added: of two rules that build one node the earlier text's is told
    ranks: dict[str, int] = field(default_factory=dict)
    texts: int = 0
    _graves: list[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._graves = _GRAVES.graphs
        self._graves.clear()

    def __del__(self) -> None:
        if self._graves is not _GRAVES.graphs:
            self._graves.append(self.graph)

    def load(self, *paths: Path) -> None:
        for path in paths:
            self.add(path.read_text())

    def add(self, text: str) -> None:
        """Declare and add rules from egglog text."""
        for key, value in self.constants.items():
            text = text.replace(f"@{key}@", str(value))
        out: list[str] = []
        self.texts += 1
        for command in read_sexps(text):
            self._declare(command)
            if command[0] == "rule":
                name = _option(command, ":name")
                if name in self.held:
                    continue
                if name:
                    self.rules[name] = _option(command, ":ruleset")
                    self.ranks.setdefault(name, self.texts)
                    command = self._with_provenance(command, name)
            out.append(show(command))
            if command[0] == "constructor" and command[3] in self.provenance:
                columns = [*command[2], "String"]
                out.append(f"(relation by_{command[1]} {show(columns)})")
                self.signatures[f"by_{command[1]}"] = Signature(columns, "Unit", False)
        self._include("\n".join(out))

    def _declare(self, command: list[Any]) -> None:
        if command[0] in ("constructor", "function"):
            self.signatures[command[1]] = Signature(command[2], command[3], command[0] == "constructor")
        elif command[0] == "relation":
            self.signatures[command[1]] = Signature(command[2], "Unit", False)

    def _with_provenance(self, command: list[Any], name: str) -> list[Any]:
        """Adds `(by_C args name)` for each constructor that an action builds, and `ord` to its `let`s.

        A rule that binds `lo` (largest operand's ord) and `hi` (the result's) has its new nodes spaced between them.
        """
        premises, actions = command[1], command[2]
        extra: list[Any] = []

        lets = [a for a in actions if a[0] == "let"]
        told = any(a[0].startswith("by_") for a in actions)  # a rule that reads facts says whose they are
        for action in actions:
            if action[0] in ("let", "union", "set") and not told:
                for part in action[1:]:
                    self._note(part, name, extra)
        if any(p[0] == "=" and p[1] == "hi" for p in premises):
            for k, action in enumerate(lets):
                extra.append(["set", ["ord", action[1]], f"(+ lo (/ (* (- hi lo) {k + 1}) {len(lets) + 1}))"])
        return [command[0], premises, actions + extra, *command[3:]]

    def _note(self, sexp: Any, name: str, extra: list[Any]) -> None:
        """Adds who built each constructor under `sexp`; no closure that calls itself: its cycle keeps graphs alive."""
        if isinstance(sexp, str):
            return
        for x in sexp[1:]:
            self._note(x, name, extra)
        if f"by_{sexp[0]}" in self.signatures:
            extra.append([f"by_{sexp[0]}", *sexp[1:], f'"{name}"'])

    def _include(self, text: str) -> None:
        with _scratch(text, ".egg") as path:
            try:
                self.graph.run_program(bindings.Include(_SPAN, path))
            except bindings.EggSmolError as e:
                raise EggError(f"egglog refused a rule: {e}", "run the rule file through `egglog` to locate it") from e

    def facts(self, relation: str, rows: Iterable[Sequence[object]]) -> int:
        """Load rows into a relation (or function: last column is its value).  Returns how many."""
        lines = ["\t".join(map(str, row)) for row in rows]
        if not lines:
            return 0
        with _scratch("\n".join(lines) + "\n", ".tsv") as path:
            self.graph.run_program(bindings.Input(_SPAN, relation, path))
        return len(lines)

    def run(self, ruleset: str, *, saturate: bool = False) -> Any:
        """Run one ruleset once, or until it changes nothing.  Returns egglog's report."""
        schedule = f"(saturate (run {ruleset}))" if saturate else f"(run {ruleset})"
        try:
            return self.graph.run_program(*self.graph.parse_program(f"(run-schedule {schedule})"))[0].report
        except bindings.EggSmolError as e:
            raise EggError(f"ruleset {ruleset}: {e}", "") from e

    def freeze(self) -> Frozen:
        return Frozen(self, self.graph.freeze().functions)


@dataclass(slots=True)
class Frozen:
    """A snapshot of all rows.  Class values stay opaque (hashable); numbers and text are decoded."""

    egg: Egg
    functions: Any

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Rows of a function: inputs, then the output (relations: inputs only)."""
        if name not in self.functions:
            return []
        sig = self.egg.signatures[name]
        readers = [self._reader(s) for s in sig.inputs]
        last = None if sig.output == "Unit" else self._reader(sig.output)
        result = []
        for row in self.functions[name].rows:
            inputs = row.inputs
            cells = [v if r is None else r(v) for r, v in zip(readers, inputs, strict=True)]
            if sig.output != "Unit":
                cells.append(row.output if last is None else last(row.output))
            result.append(tuple(cells))
        return result

    def _reader(self, sort: str) -> Any:
        graph = self.egg.graph
        return {"i64": graph.value_to_i64, "String": graph.value_to_string}.get(sort)

    def made(self) -> Counter[str]:
        """How many e-nodes each rule built (those of sorts with provenance); one that several built counts for each."""
        counts: Counter[str] = Counter()
        for name in self.egg.signatures:
            if name.startswith("by_"):
                counts.update(row[-1] for row in self.rows(name) if row[-1])
        return counts

    def makers(self, constructor: str) -> dict[tuple[Any, ...], str]:
        """Arguments of each e-node of a constructor -> the rule that built it.

        Of several, the one whose text was added first, then the least name; a name that is no rule's goes before all.
        """
        ranks = self.egg.ranks
        found: dict[tuple[Any, ...], str] = {}
        for *args, name in self.rows(f"by_{constructor}"):
            if name:
                key = tuple(args)
                found[key] = min(found.get(key, name), name, key=lambda n: (ranks.get(n, 0), n))
        return found

    def size(self) -> int:
        """E-nodes: rows of all constructors."""
        return sum(
            len(self.functions[n].rows) for n, s in self.egg.signatures.items() if s.constructor and n in self.functions
        )
