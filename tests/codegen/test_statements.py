"""Every statement of Kernel IR prints what it says, and nothing else; each target that has it compiles it."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from emmy.codegen.cuda import source
from emmy.codegen.cuda_helpers import HELPERS
from emmy.ir.kernel import For, If, Kernel, Let, Roles, S, walk
from emmy.ir.show_kernel import show_statement
from emmy.ir.target import TARGETS, Target, target
from emmy.ir.verify.kernel import KernelError, check_target, verify
from emmy.ir.verify.since import SINCE
from emmy.runtime.nvrtc import Compiled, Job, compile_many
from tests.codegen.statements import CASES, VALUES, Case, U, V, case

VALUE_CASES = {
    f"value {name}": case("cluster" if name == "cluster rank" else "", Let("e", x), line, before=(V, U))
    for name, (x, line) in VALUES.items()
}
ALL = {**CASES, **VALUE_CASES}


def printed(kernel: Kernel) -> list[str]:
    """The lines of the kernel's body after its shared memory, without the outer indentation."""
    lines = source(kernel).splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("    const int tid = "))
    return [line.removeprefix("    ") for line in lines[start + 1 : lines.index("}", start)]]


def length(s: S) -> int:
    """Lines that belong to the statement itself."""
    if isinstance(s, For):
        return 2 + (s.unroll != 1)
    if isinstance(s, If):
        return 2 + bool(s.orelse)
    if isinstance(s, Roles):
        return 1 + len(s.roles) + sum(r.registers > 0 for r in s.roles)
    return 1


def test_every_kind_of_statement_has_a_case() -> None:
    assert {type(s) for c in CASES.values() for s in c.body} == set(get_args(S))


def test_every_feature_has_a_case() -> None:
    assert {c.feature for c in CASES.values()} - {""} == set(SINCE)


@pytest.mark.parametrize("name", ALL)
def test_statements_print_exactly_their_text(name: str) -> None:
    c = ALL[name]
    lines = printed(c.kernel())
    ours = range(len(lines) - len(c.shown) + 1)
    assert any(tuple(lines[k : k + len(c.shown)]) == c.shown for k in ours), lines


@pytest.mark.parametrize("name", ALL)
def test_nothing_but_statements_is_printed(name: str) -> None:
    kernel = ALL[name].kernel()
    assert len(printed(kernel)) == sum(length(s) for s in walk(kernel.body)) - 1  # that of tid starts the body


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("arch", TARGETS)
def test_targets_without_a_statement_are_refused(name: str, arch: str) -> None:
    c = ALL[name]
    if not c.feature or SINCE[c.feature].has(target(arch)):
        check_target(c.kernel(), target(arch))
        return
    # the statements before it may be the first that the target lacks
    with pytest.raises(KernelError, match=f"{arch} has no ({re.escape(c.feature)}|ring|cluster)"):
        verify(c.kernel(), target(arch))


def test_every_statement_is_shown_on_lines_of_its_own() -> None:
    shown = {name: show_statement(c.body[0]) for name, c in CASES.items()}
    assert all(text and "\n" not in text and text == text.strip() for text in shown.values())
    assert len(set(shown.values())) == len(shown)


SHOWN = {
    "role registers": "role few  4 warps  40 registers",
    "named arrival": "arrive at 2 of 128",
    "proxy fence": "fence async shared",
    "ballot": "vote o = ballot tid == 0",
    "cursor": "cursor p of ab",
    "advance by": "advance p by 3",
    "wait for empty": "wait p empty",
    "announce elsewhere": "arrive p full 64 bytes of block cluster.rank",
    "copies arrive": "arrive p full after copies",
    "multicast": "tma s_f32[0, 0] = map_x[0, 0] on p in blocks 3",
    "TMA add": "tma map_y[8, 4] += s_f32[0, 0]",
    "bulk wait for reads": "bulk wait 1 read",
    "stmatrix transposed": "stmatrix.trans s_bf16[1, 8, 8] = w[0], w[1]",
    "first wgmma": "wgmma.m64n64.f16 acc[0 +32] = s_f16[0, 0] * s_f16[0, tid * 16]",
    "wgmma from registers": "wgmma.m64n64.bf16 acc[0 +32] += (w[0], w[1], w[2], w[3]) * s_bf16[1, 16, 0].mn",
    "dependent wait": "dependent wait",
}


@pytest.mark.parametrize("name", SHOWN)
def test_statements_are_shown_for_people(name: str) -> None:
    assert show_statement(CASES[name].body[0]) == SHOWN[name]


def has(c: Case, card: Target) -> bool:
    return not c.feature or SINCE[c.feature].has(card)


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", TARGETS)
def test_targets_with_a_statement_compile_it(arch: str) -> None:
    names = [n for n, c in ALL.items() if has(c, target(arch))]
    built = compile_many([Job(source(ALL[n].kernel()), "k", arch) for n in names])
    for name, binary in zip(names, built, strict=True):
        assert isinstance(binary, Compiled), f"{name}: {binary}"
        assert binary.notes == (), name


def test_a_descriptor_takes_14_bits_of_an_address() -> None:
    """An address in a cluster has the block's rank above them, where the descriptor has its leading offset."""
    assert "& 0x3fffu" in HELPERS["wgmma_matrix"]
