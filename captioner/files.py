"""Write a file whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader finds the old one or the whole new one, never a part.

    Args:
        path: File to write; its folder is made where absent.
        content: Text, which is written as UTF-8 (what UTF-8 cannot hold becomes "?"), or bytes.

    Raises:
        OSError: It cannot be written; what was there before is still there.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode("utf-8", errors="replace") if isinstance(content, str) else content
    # In the same folder, since only a rename within one file system is atomic.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for the owner alone; give what open() would have given.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
