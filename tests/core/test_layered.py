"""A layered map behaves like a dict, and a dropped draft leaves no trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.layered import Layered

KEYS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 3)),
        st.tuples(st.just("remove"), KEYS),
        st.tuples(st.sampled_from(["settle", "drop"])),
    ),
    max_size=40,
)


@pytest.mark.invariant("M2", "M7")
@given(STEPS)
def test_a_layered_map_is_a_dict_whose_drafts_can_be_dropped(steps):
    base: Layered[int, int] = Layered()
    draft = base.fork()
    settled: dict[int, int] = {}
    model: dict[int, int] = {}
    for step in steps:
        match step:
            case ("set", key, value):
                draft[key] = value
                model[key] = value
            case ("remove", key):
                draft.remove(key)
                model.pop(key, None)
            case ("settle",):
                draft.settle()
                base, settled = draft, dict(model)
                draft = base.fork()
            case ("drop",):
                draft, model = base.fork(), dict(settled)
        assert dict(draft.items()) == model
        assert sorted(draft.values()) == sorted(model.values())
        assert len(draft) == len(model)
        assert [draft.get(key) for key in range(8)] == [model.get(key) for key in range(8)]
        assert [key in draft for key in range(8)] == [key in model for key in range(8)]
        assert dict(base.items()) == settled, "a draft was seen below"
        assert len(base) == len(settled)


@given(st.lists(KEYS, unique=True), st.lists(KEYS, unique=True))
def test_iteration_is_in_order_of_insertion(first, second):
    base: Layered[int, int] = Layered()
    for key in first:
        base[key] = key
    base.settle()
    draft = base.fork()
    for key in second:
        draft[key] = -key
    assert [key for key, _ in draft.items()] == list(dict.fromkeys([*first, *second]))


def test_a_missing_key_is_a_key_error():
    empty: Layered[int, int] = Layered()
    with pytest.raises(KeyError):
        empty[1]
    empty.remove(1)
    assert len(empty) == 0


def test_an_unsettled_map_is_not_forked():
    base: Layered[int, int] = Layered()
    base[1] = 1
    with pytest.raises(AssertionError):
        base.fork()
