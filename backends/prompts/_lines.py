"""The lines of a file by number, without the file in memory."""

import hashlib
from array import array
from typing import IO


class Lines:
    """Finds where each line that is not blank begins: 16 bytes a line, and one pass over the file.

    Args:
        file: Open for reading in binary mode; whoever opened it closes it.

    Attributes:
        digest: SHA-256 of the whole file, in hexadecimal.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._starts = array("q")
        self._numbers = array("q")
        digest = hashlib.sha256()
        start = 0
        for number, line in enumerate(file, start=1):
            digest.update(line)
            if line.strip():
                self._starts.append(start)
                self._numbers.append(number)
            start += len(line)
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, index: int) -> tuple[int, bytes]:
        """Return the number of a line in the file, from 1, and its bytes. Not for two threads at a time."""
        self._file.seek(self._starts[index])
        return self._numbers[index], self._file.readline()
