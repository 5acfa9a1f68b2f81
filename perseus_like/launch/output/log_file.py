"""The files of `--output-filename`, which have copies of the output of ranks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from ..start_errors import LaunchError

# In a folder where others can write, someone may have made a link to another file, or a pipe that nobody reads.
_OWN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogFile:
    """A file with a copy of one stream of a rank. It ends if the disk becomes full."""

    def __init__(self, path: Path, report: Callable[[str], None], appends: bool = False) -> None:
        """Opens the file. Raises LaunchError if it cannot be created; later errors are reported to `report`.

        If `appends` is false, the file loses what it has.
        """
        self._path, self._report = path, report
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if appends else os.O_TRUNC) | _OWN_FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | _OWN_FILE)
            try:
                self._file = os.open(path.name, flags, 0o666, dir_fd=folder)
            finally:
                os.close(folder)
        except OSError as error:
            is_link = error.errno in {errno.ELOOP, errno.ENOTDIR} and (path.is_symlink() or path.parent.is_symlink())
            why = "it or its folder is a symbolic link, which is not followed; remove it" if is_link else error.strerror
            raise LaunchError(f"--output-filename: cannot write {str(path)!r}: {why}") from error

    def write(self, data: bytes) -> None:
        """Appends `data`, unless an earlier write has failed."""
        view = memoryview(data)
        try:
            while view and self._file >= 0:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self.close()
            self._report(
                f"--output-filename: cannot write more to {str(self._path)!r}: {error.strerror}; the job continues "
                "without this file"
            )

    def close(self) -> None:
        """May be called again."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
