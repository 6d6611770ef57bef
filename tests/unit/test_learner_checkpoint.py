"""Checkpoints are whole or absent: kills, full disks, damage, order and pruning."""

import errno
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from learner.checkpoint import MANIFEST, Checkpoint, CheckpointWriter, latest, open_checkpoint
from protos.errors import ConfigError, DataError, StorageError

FILES = ("model.safetensors", "trainer/state.json", "replay/snapshot.bin")


def fill(content: str):
    """A writer of three files, two of them in folders, that hold `content`."""

    def write(folder: Path) -> None:
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)

    return write


def held(checkpoint: Checkpoint | None) -> str:
    assert checkpoint is not None
    texts = {(checkpoint.folder / name).read_text() for name in FILES}
    assert len(texts) == 1, "files of two saves are mixed"
    return texts.pop()


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_a_saved_checkpoint_is_whole_and_the_latest(tmp_path):
    writer = CheckpointWriter(tmp_path / "checkpoints")
    first = writer.save(20, fill("20"))
    second = writer.save(40, fill("40"), parent=first)
    found = latest(tmp_path / "checkpoints")
    assert found == second
    assert found == open_checkpoint(second.folder)
    assert (found.step, found.parent, held(found)) == (40, "step_00000020", "40")
    assert json.loads((second.folder / MANIFEST).read_text())["files"].keys() == set(FILES)


def test_no_checkpoint_yet(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None


def test_numbers_are_compared_as_numbers_and_foreign_folders_left_alone(tmp_path):
    """BC-46: step_10 is newer than step_9; step_tmp and notes are nobody's business."""
    writer = CheckpointWriter(tmp_path, keep=1)
    for step in (9, 10):
        writer.save(step, fill(str(step)))
        (tmp_path / f"step_{step:08d}").rename(tmp_path / f"step_{step}")
    for foreign in ("step_tmp", "notes", "step_"):
        (tmp_path / foreign).mkdir()
    assert held(latest(tmp_path)) == "10"
    CheckpointWriter(tmp_path, keep=1).save(11, fill("11"))
    assert names(tmp_path) == {"step_00000011", "step_tmp", "notes", "step_"}


@pytest.mark.parametrize("keep", [0, -2])
def test_a_keep_that_deletes_everything_is_refused(tmp_path, keep):
    with pytest.raises(ConfigError, match="-1 for all"):
        CheckpointWriter(tmp_path, keep=keep)


@pytest.mark.parametrize(("keep", "left"), [(-1, {1, 2, 3, 4}), (1, {4}), (2, {3, 4}), (9, {1, 2, 3, 4})])
def test_keep(tmp_path, keep, left):
    writer, parent = CheckpointWriter(tmp_path, keep=keep), None
    for step in (1, 2, 3, 4):
        parent = writer.save(step, fill(str(step)), parent=parent)
    assert names(tmp_path) == {f"step_{step:08d}" for step in left}


@pytest.mark.parametrize(("keep", "left"), [(2, {451, 452}), (-1, {450, 451, 452, 453}), (3, {450, 451, 452})])
def test_pruning_follows_the_lineage_and_not_the_highest_number(tmp_path, keep, left):
    """BC-46: resumed from 450 with an orphan 453: 451 and 452 remain, and a restart loads 452."""
    writer = CheckpointWriter(tmp_path)
    start = writer.save(450, fill("450"))
    writer.save(453, fill("orphan"), parent=start)
    resumed = CheckpointWriter(tmp_path, keep=keep)
    parent = resumed.save(451, fill("451"), incarnation=1, parent=open_checkpoint(start.folder))
    assert held(latest(tmp_path)) == "451"
    resumed.save(452, fill("452"), incarnation=1, parent=parent)
    assert names(tmp_path) == {f"step_{step:08d}" for step in left}
    assert held(latest(tmp_path)) == "452"


def test_the_first_save_after_a_resume_keeps_its_parent_and_drops_the_orphan(tmp_path):
    writer = CheckpointWriter(tmp_path)
    start = writer.save(450, fill("450"))
    writer.save(453, fill("orphan"), parent=start)
    CheckpointWriter(tmp_path, keep=2).save(451, fill("451"), incarnation=1, parent=start)
    assert names(tmp_path) == {"step_00000450", "step_00000451"}


def test_a_new_incarnation_takes_over_the_name_of_an_orphan(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=-1)
    start = writer.save(1, fill("1"))
    writer.save(2, fill("orphan"), parent=start)
    writer.save(2, fill("2"), incarnation=1, parent=start)
    assert held(latest(tmp_path)) == "2"
    assert names(tmp_path) == {"step_00000001", "step_00000002"}


def damage(folder: Path, kind: str) -> None:
    match kind:
        case "truncated file":
            os.truncate(folder / FILES[0], 1)
        case "changed file":
            (folder / FILES[1]).write_text("41")
        case "missing file":
            (folder / FILES[2]).unlink()
        case "missing manifest":
            (folder / MANIFEST).unlink()
        case "truncated manifest":
            os.truncate(folder / MANIFEST, 30)
        case "foreign manifest":
            (folder / MANIFEST).write_text("[]")


DAMAGES = [
    "truncated file",
    "changed file",
    "missing file",
    "missing manifest",
    "truncated manifest",
    "foreign manifest",
]


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_broken_checkpoint_is_named_and_passed_over(tmp_path, caplog, kind):
    """BC-43"""
    writer = CheckpointWriter(tmp_path, keep=1)
    first = writer.save(20, fill("20"))
    writer = CheckpointWriter(tmp_path)
    second = writer.save(40, fill("40"), parent=first)
    damage(second.folder, kind)
    with caplog.at_level(logging.WARNING):
        assert held(latest(tmp_path)) == "20"
    assert str(second.folder) in caplog.text
    with pytest.raises(DataError, match="step_00000040"):
        open_checkpoint(second.folder)


def failing_calls(monkeypatch, name: str, number: int):
    """Make call `number` (from 0) of os.<name> fail with ENOSPC."""
    calls, real = iter(range(10_000)), getattr(os, name)

    def fail(*arguments):
        if next(calls) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize(("call", "number"), [*(("fsync", n) for n in range(8)), ("rename", 0), ("rename", 1)])
def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch, call, number):
    """Also where the new one would take the name of the one before."""
    writer = CheckpointWriter(tmp_path)
    writer.save(20, fill("20"))
    with monkeypatch.context() as patch:
        failing_calls(patch, call, number)
        with pytest.raises(StorageError, match=r"step_00000020 was not saved.*No space left"):
            writer.save(20, fill("again"))
    assert held(latest(tmp_path)) in {"20", "again"}
    assert names(tmp_path) == {"step_00000020"}
    writer.save(40, fill("40"))
    assert held(latest(tmp_path)) == "40"


def test_a_write_that_fails_leaves_nothing_behind(tmp_path):
    def write(folder: Path) -> None:
        fill("half")(folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageError, match="No space left"):
        CheckpointWriter(tmp_path).save(1, write)
    assert names(tmp_path) == set()


def test_an_error_that_is_not_the_disks_passes_through(tmp_path):
    def write(folder: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CheckpointWriter(tmp_path).save(1, write)
    assert names(tmp_path) == set()


KILLED_SAVE = """
import os, signal, sys
from pathlib import Path
from learner.checkpoint import CheckpointWriter, latest
root, step, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
calls = 0
def counted(real):
    def call(*arguments, **named):
        global calls
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return real(*arguments, **named)
    return call
for name in ("fsync", "rename", "mkdir", "unlink", "rmdir", "open"):
    setattr(os, name, counted(getattr(os, name)))
Path.open = counted(Path.open)
def write(folder):
    for name in sys.argv[4:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("new")
CheckpointWriter(root, keep=1).save(step, write, incarnation=1, parent=latest(root))
print("calls", calls)
"""


def run_killed_save(root: Path, step: int, number: int) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", KILLED_SAVE, str(root), str(step), str(number), *FILES],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("step", [20, 40])
def test_sigkill_at_any_point_leaves_a_whole_checkpoint(tmp_path, step):
    """BC-43: a real SIGKILL before each file operation of a save; step 20 replaces the previous folder's name."""
    done = run_killed_save(seeded(tmp_path / "count"), step, 10_000)
    operations = int(done.stdout.split()[1])
    assert operations > 20
    for number in range(0, operations, 3):
        root = seeded(tmp_path / str(number))
        killed = run_killed_save(root, step, number)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        CheckpointWriter(root)
        found = latest(root)
        assert held(found) in {"old", "new"}
        assert not [name for name in names(root) if name.startswith(".")], "temporary folders are cleared away"


def seeded(root: Path) -> Path:
    CheckpointWriter(root).save(20, fill("old"))
    return root


def test_a_disk_limit_in_safetensors_is_a_storage_error(tmp_path):
    """A real limit on the size of a file, hit inside safetensors, which wraps the error as its own."""
    import torch
    from safetensors.torch import save_file

    def write(folder: Path) -> None:
        save_file({"weight": torch.zeros(100_000)}, folder / "model.safetensors")

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        with pytest.raises(StorageError, match="not saved"):
            CheckpointWriter(tmp_path).save(1, write)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert names(tmp_path) == set()
