"""A layered map behaves like a dict, and a dropped draft leaves no trace."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallystick.core import layered
from tallystick.core.identity import ActivationKey
from tallystick.core.layered import Layered, Overlay
from tallystick.core.schedule import Schedule

KEYS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 3)),
        st.tuples(st.just("remove"), KEYS),
        st.tuples(st.sampled_from(["settle", "drop"])),
    ),
    max_size=40,
)


@pytest.fixture(params=[0, 3, 32], autouse=True)
def copied_max(request, monkeypatch):
    """Forks that are copies, forks that are overlays, and maps that grow from one to the other."""
    monkeypatch.setattr(layered, "COPIED_MAX", request.param)


@pytest.mark.invariant("M2", "M7")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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
                base, settled = draft.settle(), dict(model)
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(KEYS, unique=True), st.lists(KEYS, unique=True))
def test_iteration_is_in_order_of_insertion(first, second):
    base: Layered[int, int] = Layered()
    for key in first:
        base[key] = key
    draft = base.settle().fork()
    for key in second:
        draft[key] = -key
    assert [key for key, _ in draft.items()] == list(dict.fromkeys([*first, *second]))


def test_a_missing_key_is_a_key_error():
    for empty in (Layered[int, int](), Overlay[int, int](Layered())):
        with pytest.raises(KeyError):
            empty[1]
        empty.remove(1)
        assert len(empty) == 0


def test_an_unsettled_map_is_not_forked():
    base: Overlay[int, int] = Overlay(Layered())
    base[1] = 1
    with pytest.raises(AssertionError):
        base.fork()


@pytest.mark.invariant("M2", "R6")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_a_schedule_gives_its_keys_by_their_instants(steps):
    """The same steps, and after each of them what is due first is first."""
    base = Schedule()
    draft = base.fork()
    settled: dict[ActivationKey, int] = {}
    model: dict[ActivationKey, int] = {}
    for step in steps:
        match step:
            case ("set", key, value):
                draft[ActivationKey(str(key))] = value
                model[ActivationKey(str(key))] = value
            case ("remove", key):
                draft.remove(ActivationKey(str(key)))
                model.pop(ActivationKey(str(key)), None)
            case ("settle",):
                base, settled = draft.keep(), dict(model)
                draft = base.fork()
            case ("drop",):
                draft, model = base.fork(), dict(settled)
        assert list(draft.in_order()) == sorted((due, key) for key, due in model.items())
        assert list(base.in_order()) == sorted((due, key) for key, due in settled.items())
        assert dict(draft.items()) == model


def test_what_a_draft_takes_while_it_goes_through_a_schedule_does_not_disturb_it():
    base = Schedule()
    for at in range(6):
        base[ActivationKey(str(at))] = at
    draft = base.keep().fork()
    taken = []
    for due, key in draft.in_order():
        draft.remove(key)
        draft[ActivationKey("late")] = 0
        taken.append(due)
    assert taken == list(range(6))
    assert list(draft.in_order()) == [(0, ActivationKey("late"))]
