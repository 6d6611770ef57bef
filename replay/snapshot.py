"""The snapshot file: a header and records, length-delimited in one zstandard frame with a checksum; written atomically.

frame(header JSON) frame(record) frame(record) ...        frame = length (uint64, little-endian), bytes
"""

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import zstandard

from protos.errors import DataError, StorageError

FILE = "replay.zst"
_LENGTH = struct.Struct("<Q")
_LONGEST = 1 << 31
_LEVEL = 1  # records are small integers and repeated texts: higher levels gain little and hold the learner up


def write(folder: Path, header: bytes, records: Iterable[bytes]) -> None:
    """Replace the snapshot in `folder` in one step, durably. StorageError where the disk refuses; the old one stays."""
    path = folder / FILE
    partial = path.with_suffix(".partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            _write_frames(file, header, records)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(folder)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; what was saved before is intact: "
            "free space or choose another folder"
        ) from error


@contextmanager
def read(folder: Path) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    """The header and the records of the snapshot in `folder`. DataError where it is missing, damaged or cut short."""
    path = folder / FILE
    if not path.is_file():
        raise DataError(f"no {FILE} in {folder}: not a replay snapshot")
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            frames = _read_frames(stream, path)
            header = next(frames, None)
            if header is None:
                raise DataError(f"{path} is empty")
            yield header, frames
    except zstandard.ZstdError as error:
        raise DataError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


def _write_frames(file: BinaryIO, header: bytes, records: Iterable[bytes]) -> None:
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    with compressor.stream_writer(file, closefd=False) as stream:
        for data in (header, *records):
            stream.write(_LENGTH.pack(len(data)))
            stream.write(data)


def _read_frames(stream: zstandard.ZstdDecompressionReader, path: Path) -> Iterator[bytes]:
    while prefix := stream.read(_LENGTH.size):
        if len(prefix) < _LENGTH.size:
            raise DataError(f"{path} is cut short")
        (length,) = _LENGTH.unpack(prefix)
        if length > _LONGEST:
            raise DataError(f"{path} is damaged: a record of {length} bytes")
        data = stream.read(length)
        if len(data) < length:
            raise DataError(f"{path} is cut short")
        yield data


def _sync_folder(folder: Path) -> None:
    """Make the new name durable too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
