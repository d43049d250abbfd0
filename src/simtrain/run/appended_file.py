"""A file that grows by whole entries, also when the disk is full or gone for a while."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class AppendedFile:
    """Appends entries; what cannot be written waits for the next call. Never raises OSError.

    After every call the file ends with a whole entry, so that its readers never see a part of one
    unless the process is killed while it writes.
    """

    def __init__(self, path: Path) -> None:
        """Make the file, or go on at its end.

        Raises:
            OSError: it cannot be made.
        """
        self.path = path
        self.error: str | None = None
        """Why entries are waiting, or None if none are."""
        self.descriptor = -1
        """The open file; -1 while there is none."""
        self._waiting: list[bytes] = []
        self._open()

    def append(self, entry: bytes) -> None:
        """Write what is waiting and `entry`, as far as that is possible."""
        self._waiting.append(entry)
        self.flush()

    def flush(self) -> None:
        """Write what is waiting, as far as that is possible."""
        if not self._waiting:
            return
        try:
            if self.descriptor >= 0 and os.fstat(self.descriptor).st_nlink == 0:
                os.close(self.descriptor)  # removed: we would write into nothing
                self.descriptor = -1
            if self.descriptor < 0:
                self._open()
            self._write(b"".join(self._waiting))
        except OSError as error:
            self.error = error.strerror or str(error)
        else:
            self._waiting.clear()
            self.error = None

    def sync(self) -> None:
        """Wait until what was written is on the disk; for another thread."""
        with suppress(OSError):
            os.fsync(self.descriptor)

    def close(self) -> None:
        """Write what is waiting, as far as that is possible, and close the file."""
        self.flush()
        with suppress(OSError):
            os.close(self.descriptor)

    def _open(self) -> None:
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def _write(self, data: bytes) -> None:
        size = os.fstat(self.descriptor).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.descriptor, size)
            raise
