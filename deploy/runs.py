"""A run's folder: every file that a run leaves, and how a resumed run takes them up where its checkpoint left them.

runs/<name>/
    config.toml         the resolved settings
    metrics.jsonl       one line an update; free of clocks, so a resumed run's file equals an uninterrupted one's
    timings.jsonl       the same updates' seconds and rates
    evaluations.jsonl   one line an evaluation
    episodes/*.jsonl    episodes as text and token ids
    tensorboard/  checkpoints/
    summary.json  report.html
"""

import errno
import fcntl
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from protos.errors import ConfigError, DataError, StorageError, TandemError

Cursor = dict[str, int]
"""Bytes of each line file, by its path within the run folder."""

DISK_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "read-only disk",
}


class RunFolder:
    """One run's files. `create` and `open(write=True)` hold the run's lock until `close`: one process writes a run.

    with RunFolder.create(Path("runs"), default_name("household", seed=0), config_toml) as run:
        cursor = run.cursor()                       # saved with a checkpoint
    with RunFolder.open(path, write=True) as run:
        run.rewind(cursor)                          # drops the lines written after it
    """

    def __init__(self, path: Path, lock: int | None = None) -> None:
        self.path = path
        self.config, self.metrics, self.timings = (path / f for f in ("config.toml", "metrics.jsonl", "timings.jsonl"))
        self.evaluations, self.summary, self.report = (
            path / f for f in ("evaluations.jsonl", "summary.json", "report.html")
        )
        self.episodes, self.tensorboard, self.checkpoints = (
            path / d for d in ("episodes", "tensorboard", "checkpoints")
        )
        self._lock = lock

    @classmethod
    def create(cls, runs: Path, name: str, config: str) -> Self:
        """A new folder `runs/name`, or `name-2`, `name-3`, ... where that exists; `config` is the resolved TOML."""
        if not name or Path(name).name != name or name.startswith("."):
            raise ConfigError(f"{name!r} cannot name a run: use letters, digits, dots, dashes and underscores")
        with storage(runs):
            runs.mkdir(parents=True, exist_ok=True)
            path = _new_folder(runs, name)
            run = cls(path, _acquire(path))
            for folder in (run.episodes, run.tensorboard, run.checkpoints):
                folder.mkdir()
        run.write(run.config, config)
        return run

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> Self:
        """The run at `path`. DataError where there is none; StorageError where another process writes it."""
        if not (path / "config.toml").is_file():
            raise DataError(f"{path} is not a run folder: it has no config.toml")
        return cls(path, _acquire(path) if write else None)

    def cursor(self) -> Cursor:
        """Where the line files end now; they are on disk when this returns."""
        with storage(self.path):
            return {str(file.relative_to(self.path)): _synced_size(file) for file in self._line_files()}

    def rewind(self, cursor: Mapping[str, int]) -> None:
        """Cut the line files back to `cursor`. DataError, before anything is cut, where one is shorter than it says."""
        for name, size in cursor.items():
            file = self.path / name
            held = file.stat().st_size if file.is_file() else 0
            if held < size:
                raise DataError(f"{file} holds {held} bytes, its checkpoint saw {size}: the file was cut or replaced")
        with storage(self.path):
            for file in self._line_files():
                size = cursor.get(str(file.relative_to(self.path)), 0)
                if size == 0:
                    file.unlink()  # an uninterrupted run would not have it yet
                else:
                    os.truncate(file, size)

    def write(self, file: Path, text: str) -> None:
        """Replace a file of this run, wholly or not at all."""
        replace_file(file, text)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self.write(self.summary, json.dumps(strict(summary), indent=2, allow_nan=False) + "\n")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # which releases the lock
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line_files(self) -> list[Path]:
        files = [self.metrics, self.timings, self.evaluations, *sorted(self.episodes.glob("*.jsonl"))]
        return [file for file in files if file.is_file()]


def default_name(config_name: str, seed: int, today: date | None = None) -> str:
    return f"{today or date.today()}-{config_name}-s{seed}"


def code_commit() -> str:
    """The commit of the code that runs, `-dirty` where tracked files changed; "unknown" outside its own repository."""
    root = Path(__file__).resolve().parent.parent
    if _git(root, "rev-parse", "--show-toplevel") != str(root):
        return "unknown"  # installed elsewhere: a repository around the installation is not ours
    commit = _git(root, "rev-parse", "--verify", "HEAD") or "unknown"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if changed else commit


@contextmanager
def storage(where: Path) -> Iterator[None]:
    """Turn a disk that refuses to write into StorageError."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, where) or error from error


def storage_error(error: OSError, where: Path | None = None) -> TandemError | None:
    """The StorageError that words `error`, where the disk is what refused."""
    place = error.filename or where or "a file"
    if error.errno in DISK_ERRORS:
        reason = DISK_ERRORS[error.errno]
        return StorageError(f"{reason} at {place}: make room and resume the run; what was saved before is intact")
    if error.errno in (errno.EACCES, errno.EPERM):
        return StorageError(f"no permission for {place}: change its owner or give another folder")
    return None


def replace_file(file: Path, text: str) -> None:
    """Write `text` to `file` atomically: a reader or a crash meets the old file or the new one, whole."""
    part = file.with_name(f".{file.name}.part")
    with storage(file):
        try:
            with part.open("w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def strict(value: Any) -> Any:
    """`value` as strict JSON can hold it: numpy scalars as numbers, arrays as lists, NaN and infinity as null.

    A float32 becomes its shortest decimal (0.1, not 0.10000000149011612): it reads back as the same float32.
    """
    import numpy as np

    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [strict(item) for item in value] if value.ndim else strict(value[()])
    if isinstance(value, list | tuple | set | frozenset):
        return [strict(item) for item in value]
    if isinstance(value, np.floating):
        return float(str(value)) if np.isfinite(value) else None
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _new_folder(runs: Path, name: str) -> Path:
    number = 1
    while True:
        path = runs / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _acquire(path: Path) -> int:
    """Lock the run; the kernel releases it however its process ends."""
    with storage(path):
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode() or "?"
            os.close(lock)
            raise StorageError(f"{path} is being written by process {holder}: wait for it or stop it first") from None
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _synced_size(file: Path) -> int:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _git(folder: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
