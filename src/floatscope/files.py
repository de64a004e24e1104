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
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskError(
                f"the disk is full: {path} could not be written. Free some space and run the same "
                "command again; finished runs and the last checkpoint are intact."
            ) from error
        raise DiskError(f"{path} could not be written: {error.strerror or error}.") from error


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
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """`write_atomically` for a string, as UTF-8."""
    write_atomically(path, lambda temporary: _write_bytes(temporary, text.encode()))


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


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

    Raises:
        FloatscopeError: another process holds it.
    """
    import fcntl

    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a+")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FloatscopeError(
                f"another process is working on {what} {folder}. Wait for it to end, or choose "
                "another folder with --out."
            ) from None
        yield
