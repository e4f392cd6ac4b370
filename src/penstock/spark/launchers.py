"""Small scripts through which Spark starts other programs."""

import hashlib
import os
import tempfile
from pathlib import Path


def installed(script: str, kind: str, program: str, temporary: Path) -> Path:
    """The folder that has a script as its `program`.

    It lies in the user's cache, for all processes alike; under `temporary` where there is no such place.
    """
    try:
        return _installed(script, _cache() / kind, program)
    except (OSError, RuntimeError):  # nothing can be written or run there, or there is no home at all
        return _installed(script, temporary / kind, program)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else Path.home() / ".cache", "penstock")


def _installed(script: str, folder: Path, program: str) -> Path:
    home = folder / hashlib.sha256(script.encode()).hexdigest()[:16]
    path = home / program
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (path.is_file() and path.read_text() == script and os.access(path, os.X_OK)):
        _put(script, path)
    if not os.access(path, os.X_OK):
        raise PermissionError(f"{path} is on a file system that runs no programs")
    return home


def _put(script: str, path: Path) -> None:
    """Put the script in place as a whole, because another process may be about to run it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "w") as file:
            file.write(script)
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
