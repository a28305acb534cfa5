"""Exit codes are stable, and every error has one."""

import inspect

import pytest

from tallystick import errors
from tallystick.core.status import StatusName
from tallystick.surfaces.exits import ExitCode, of_error, of_signal, of_status

OF_ERROR = {
    errors.InvalidRequest("x"): 2,
    errors.NotFound("x"): 2,
    errors.Conflict("x"): 2,
    errors.NotReady("x"): 2,
    errors.ForkedClient("x"): 2,
    errors.RunFailed("x"): 1,
    errors.RunInDoubt("x"): 3,
    errors.AuthorityLost("x"): 4,
    errors.OwnerElsewhere("x"): 4,
    errors.CapacityUnavailable("x", which="disk", transient=True): 5,
    errors.MaintenanceRequired("x"): 5,
    errors.UnsupportedSchema("x"): 5,
    errors.StoreUnavailable("x"): 5,
    PermissionError("x"): 5,
    ValueError("x"): 70,
}


@pytest.mark.parametrize(("error", "code"), OF_ERROR.items(), ids=lambda x: type(x).__name__)
def test_an_error_has_its_exit_code(error, code):
    assert of_error(error) == code


def test_every_error_that_a_caller_can_catch_has_an_exit_code():
    classes = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.TallyError) and kind is not errors.TallyError
    }
    assert classes <= {type(error) for error in OF_ERROR}


def test_a_class_below_a_known_one_means_the_same():
    class Odd(errors.Conflict):
        """A kind of conflict."""

    assert of_error(Odd("x")) == ExitCode.INVALID


@pytest.mark.parametrize("status", StatusName.__args__)
def test_a_run_that_did_not_end_waits_for_a_person(status):
    expected = {"succeeded": 0, "failed": 1, "cancelled": 1, "damaged": 5}
    assert of_status(status) == expected.get(status, 3)


def test_signals_are_told_as_shells_do():
    assert (of_signal(2), of_signal(15)) == (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
