"""Files that are either whole or absent, and folders that one process owns at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from floatscope.errors import FloatscopeError


class DiskError(FloatscopeError):
    """A file could not be written; nothing that existed before was changed."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write `path` into a `DiskError` that says why."""
    try:
        yield
    except Exception as error:
        # safetensors and DuckDB report a full disk in words, as errors of their own.
        if getattr(error, "errno", 0) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error):
            raise DiskError(
                f"the disk is full: {path} could not be written. Free some space and run the same "
                "command again; finished runs and the last checkpoint are intact."
            ) from error
        if isinstance(error, OSError):
            raise DiskError(f"{path} could not be written: {error.strerror or error}.") from error
        raise


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill a temporary file beside `path`, make it durable, and rename it to `path`.

    Whoever opens `path` sees the old content or the new, never a part, whenever the process is
    killed.

    Raises:
        DiskError: the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """`write_atomically` for a string, as UTF-8."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(text.encode())

    write_atomically(path, write)


def check_writable(folder: Path) -> None:
    """Make a folder of records, before the work is done.

    Raises:
        DiskError: it cannot be made or written.
    """
    trial = folder / ".trial"
    write_text_atomically(trial, "")
    trial.unlink()


def remove_leftovers(folder: Path) -> None:
    """Delete what `write_atomically` left in `folder` when a process was killed inside it.

    Only for a folder that this process owns.
    """
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def owned(folder: Path, what: str) -> Iterator[None]:
    """Hold `folder` for this process; the lock goes with the process, however it ends.

    Temporary files that a killed owner left behind are removed.

    Raises:
        FloatscopeError: another process holds it.
    """
    import fcntl

    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    with open(folder / ".lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FloatscopeError(
                f"another process is working on {what} {folder}. Wait for it to end, or choose "
                "another folder with --out."
            ) from None
        remove_leftovers(folder)
        yield
