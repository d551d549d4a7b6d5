"""Every stage of a compile as a numbered text, in pass order: what `EMMY_DUMP_DIR` takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from emmy.errors import EmmyError
from emmy.inspect.derivation import derive
from emmy.inspect.folder import write_folder
from emmy.inspect.views import launch_text, rule_counts, show_ir, show_tensor_rows, titled
from emmy.saturation import Saturation

# The pass that an IR needs, and the names of the passes by letter.
NEEDS: Final = {"torch": "", "tensor": "d", "loop": "l", "tile": "t", "kernel": "k", "cuda": "c"}
PASS_NAMES: Final = {
    "d": "decomposition", "o": "optimization", "l": "lifting", "f": "fusion", "s": "stamping", "t": "tile",
    "p": "placement", "k": "kernel", "c": "cuda",
}  # fmt: skip


def stages(s: Saturation) -> Iterator[tuple[str, str]]:
    """(file name, text) of each stage that ran."""
    passes = s.options.passes
    yield "00-torch.txt", show_ir(s, "torch")
    texts = {
        "d": lambda: show_tensor_rows(s, algebra=False),
        "o": lambda: show_ir(s, "tensor"),
        "l": lambda: _lifted(s),
        "f": lambda: "\n\n".join(_fused(s)),
        "s": lambda: show_ir(s, "loop"),
        "t": lambda: _unmapped(s),
        "p": lambda: show_ir(s, "tile"),
        "k": lambda: show_ir(s, "kernel"),
        "c": lambda: show_ir(s, "cuda"),
    }
    for i, letter in enumerate(passes):
        yield f"{i + 1:02d}-{PASS_NAMES[letter]}.{'cu' if letter == 'c' else 'txt'}", texts[letter]()


def dump(s: Saturation, folder: Path) -> None:
    """Write every stage, and each kernel's source under `kernels/`.  EmmyError where the folder takes nothing."""
    try:
        files = {name: (text + "\n").encode() for name, text in stages(s)}
        if "c" in s.options.passes:
            files |= {f"kernels/{c.name}.cu": c.source.encode() for c in s.launches}
        write_folder(folder, files)
    except OSError as e:
        raise EmmyError(f"cannot write to EMMY_DUMP_DIR {folder}: {e.strerror}", "name another folder") from e


def _lifted(s: Saturation) -> str:
    """The chosen derivation with one launch an operation."""
    from emmy.ir.show_loop import show_loop

    d = derive(s)
    lifted = [l for l in d.launches if l.rule.startswith("lift")]
    order = s.model.numbering.order
    lifted.sort(key=lambda l: (order[l.results[0]], l.id))
    texts = []
    for i, l in enumerate(lifted):
        operands, results = ([d.names.tensor(t) for t in ts] for ts in (l.operands, l.results))
        texts.append(titled(i, results[0], show_loop(l.body, operands, results), "loop"))
    return "\n\n".join(texts)


def _fused(s: Saturation) -> Iterator[str]:
    """The chosen launches as they were composed, before they got their names."""
    from emmy.ir.show_loop import show_loop

    for i, c in enumerate(s.launches):
        yield titled(i, ", ".join(c.results), show_loop(c.launch.body, c.operands, c.results), "loop")


def _unmapped(s: Saturation) -> str:
    """The Fold trees before a schedule places them."""
    return "\n\n".join(
        titled(i, c.name, launch_text(s, c, "tile", mapped=False), "tile") for i, c in enumerate(s.launches)
    )


def timings(s: Saturation, load_seconds: float) -> list[str]:
    """`-v`: seconds of each stage, then how often each rule applied."""
    spent = {"load": load_seconds, **{k: v for k, v in s.seconds.items() if k != "model"}}
    inner = {f"model/{k}": v for k, v in s.model.seconds.items()}
    lines = [f"{name:<24} {t:8.3f} s" for name, t in {**spent, **inner}.items()]
    loading = ("source-", "launch-")  # rules that only read facts
    counts = {name: n for name, n in rule_counts(s).items() if not name.startswith(loading)}
    return [*lines, *(f"{name:<40} {n:>6} x" for name, n in sorted(counts.items()))]
