from hypothesis import given
from hypothesis import strategies as st

from emmy.runtime.arena import ALIGNMENT, Lifetime, peak, place


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    sizes = st.one_of(st.integers(0, 4), st.integers(1, 5000), st.just(256), st.just(512))
    spans = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), sizes), max_size=40))
    return [Lifetime(f"t{k}", n, min(a, b), max(a, b)) for k, (a, b, n) in enumerate(spans)]


@given(lifetimes())
def test_buffers_alive_together_never_overlap(lives: list[Lifetime]) -> None:
    layout = place(lives)
    for k, a in enumerate(lives):
        start = layout.offsets[a.name]
        assert start % ALIGNMENT == 0
        assert (start >= 0 and start + a.bytes <= layout.bytes) or a.bytes == 0
        for b in lives[k + 1 :]:
            other = layout.offsets[b.name]
            apart = start + a.bytes <= other or other + b.bytes <= start
            assert apart or not a.meets(b) or 0 in (a.bytes, b.bytes)


@given(lifetimes())
def test_arena_lies_between_the_peak_and_the_sum(lives: list[Lifetime]) -> None:
    size = place(lives).bytes
    assert peak(lives) <= size
    assert size <= sum(-(-b.bytes // ALIGNMENT) * ALIGNMENT for b in lives)


@given(lifetimes())
def test_placement_depends_on_content_not_on_order(lives: list[Lifetime]) -> None:
    assert dict(place(lives).offsets) == dict(place(lives[::-1]).offsets)


def test_a_chain_needs_two_buffers() -> None:
    # launch k writes t(k) and reads t(k-1)
    chain = [Lifetime(f"t{k}", 1000, k, k + 1) for k in range(50)]
    assert place(chain).bytes == 2 * 1024


def test_smallest_gap_that_fits_is_taken() -> None:
    long, short = (0, 9), (0, 3)
    lives = [
        Lifetime("a", 4096, *long),
        Lifetime("wide", 2560, *short),
        Lifetime("b", 2304, *long),
        Lifetime("narrow", 1536, *short),
        Lifetime("c", 1280, *long),
        Lifetime("late", 1024, 5, 6),
    ]
    offsets = place(lives).offsets
    assert offsets["late"] == offsets["narrow"] != offsets["wide"]


def test_nothing_needs_no_arena() -> None:
    assert place([]).bytes == 0
    assert peak([]) == 0
