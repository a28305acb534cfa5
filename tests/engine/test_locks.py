"""Lock files and what they prove."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from tallystick.engine.locks import (
    Absent,
    Free,
    Machine,
    Taken,
    ask,
    engine_holder,
    evidence,
    me,
    take_engine,
    take_instance,
    this_machine,
)
from tallystick.errors import OwnerElsewhere, StoreUnavailable
from tallystick.store.protocol import EngineRow

HERE = Machine("here", "boot-1")


def taken(folder, name="e_1"):
    return take_instance(folder, me(5, name, HERE))


def row_of(lock, **changes) -> EngineRow:
    row = EngineRow("e_1", 1, "b", "here", "boot-1", 1, 5, str(lock.path), lock.device, lock.inode)
    return msgspec.structs.replace(row, **changes)


def test_the_engine_lock_is_held_once_and_its_holder_is_named(tmp_path):
    lock = take_engine(tmp_path / "l", 1, me(5, "e_1", HERE))
    with pytest.raises(OwnerElsewhere) as refused:
        take_engine(tmp_path / "l", 1, me(6, "e_2", HERE))
    assert refused.value.facts["pid"] == os.getpid()
    assert Path(sys.orig_argv[0]).name in refused.value.facts["command"]
    assert engine_holder(tmp_path / "l", 1).since == 5
    take_engine(tmp_path / "l", 2, me(6, "e_2", HERE)).release()
    lock.release()
    lock.release()
    assert engine_holder(tmp_path / "l", 1) is None
    take_engine(tmp_path / "l", 1, me(6, "e_2", HERE)).release()


@pytest.mark.invariant("D4")
def test_lock_files_are_for_their_owner_only_and_a_folder_that_others_write_is_refused(tmp_path):
    lock = taken(tmp_path / "l")
    assert oct(os.stat(tmp_path / "l").st_mode)[-3:] == "700"
    assert oct(os.stat(lock.path).st_mode)[-3:] == "600"
    lock.release()
    os.chmod(tmp_path / "l", 0o777)
    with pytest.raises(StoreUnavailable):
        taken(tmp_path / "l", "e_2")


def test_a_symbolic_link_in_the_place_of_a_lock_is_not_followed(tmp_path):
    (tmp_path / "l").mkdir(mode=0o700)
    (tmp_path / "l" / "e_1.lock").symlink_to(tmp_path / "target")
    with pytest.raises(StoreUnavailable):
        taken(tmp_path / "l")
    assert not (tmp_path / "target").exists()


@pytest.mark.invariant("A5")
@pytest.mark.parametrize(
    ("changes", "held", "kind"),
    [
        ({}, True, "live"),
        ({}, False, "ended"),
        ({"boot": "boot-2"}, True, "live"),
        ({"boot": "boot-2"}, False, "ended"),
        ({"host": "renamed"}, False, "ended"),
        ({"host": "other", "boot": "boot-2"}, False, "unverifiable"),
        ({"host": "other", "boot": ""}, False, "unverifiable"),
        ({"lock_path": "/nowhere/e_1.lock"}, False, "unverifiable"),
        ({"lock_inode": 1}, False, "unverifiable"),
        ({"lock_device": 1}, False, "unverifiable"),
        ({"ended": "drained"}, False, "ended"),
        ({"ended": "drained", "host": "other", "boot": "x"}, False, "ended"),
        ({"ended": '["00"]'}, True, "live"),
        ({"ended": '["00"]'}, False, "ended"),
    ],
)
def test_only_what_the_kernel_or_a_drained_end_says_is_evidence(tmp_path, changes, held, kind):
    """Not a process id (1 lives for ever), not the age, not equal names of machines."""
    lock = taken(tmp_path / "l")
    row = row_of(lock, **changes)
    if not held:
        lock.release()
    found = evidence(row, HERE)
    assert found.kind == kind
    assert found.seen
    lock.release()


def test_no_record_is_unverifiable():
    assert evidence(None, HERE).kind == "unverifiable"


def test_a_file_put_in_the_place_of_the_lock_proves_nothing(tmp_path):
    lock = taken(tmp_path / "l")
    row = row_of(lock)
    os.replace(_empty(tmp_path / "other"), lock.path)
    assert isinstance(ask(lock.path, row.lock_device, row.lock_inode), Absent)
    assert evidence(row, HERE).kind == "unverifiable"
    lock.release()


def test_an_inode_that_is_used_again_proves_nothing(tmp_path):
    lock = taken(tmp_path / "l")
    row = row_of(lock)
    lock.release()
    lock.path.write_bytes(b"")
    assert evidence(row, HERE).kind == "unverifiable"
    lock.path.write_bytes(msgspec.json.encode(me(5, "e_2", HERE)))
    assert evidence(row, HERE).kind == "unverifiable"


def test_a_forked_child_keeps_no_lock(tmp_path):
    lock = taken(tmp_path / "l")
    told, tell = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b".")
        os.read(wait, 1)
        os._exit(0)
    try:
        os.read(told, 1)
        assert isinstance(ask(lock.path, lock.device, lock.inode), Taken)
        lock.release()
        assert isinstance(ask(lock.path, lock.device, lock.inode), Free)
    finally:
        os.write(go, b".")
        os.waitpid(child, 0)


def test_a_started_program_keeps_no_lock_and_a_killed_process_frees_its_own(tmp_path):
    program = textwrap.dedent(
        f"""
        import subprocess, sys, time
        from pathlib import Path
        from tallystick.engine.locks import Machine, me, take_instance
        lock = take_instance(Path({str(tmp_path / "l")!r}), me(5, "e_1", Machine("here", "b")))
        nothing = subprocess.DEVNULL
        child = subprocess.Popen(["sleep", "60"], close_fds=False, stdin=nothing, stdout=nothing)
        print(lock.device, lock.inode, child.pid, flush=True)
        sys.stdin.read()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        _held_until_killed(process, tmp_path / "l" / "e_1.lock")


def _held_until_killed(process, path):
    device, inode, child = map(int, process.stdout.readline().split())
    try:
        held = ask(path, device, inode)
        assert isinstance(held, Taken)
        assert held.holder.pid == process.pid
        process.kill()
        process.wait()
        assert isinstance(ask(path, device, inode), Free)
    finally:
        os.kill(child, 9)


def test_this_machine_has_a_name_and_on_linux_a_boot_id():
    here = this_machine()
    assert here.host
    assert (here.boot != "") == (sys.platform == "linux")


def _empty(path):
    path.touch()
    return path
