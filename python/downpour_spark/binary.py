"""Where the program `downpour` is: the static binary that the package carries."""
from __future__ import annotations

import hashlib
import os
import pkgutil
import shutil
import tempfile


def path() -> str:
    """The program: `DOWNPOUR_BINARY`, the package's own, or one on the path."""
    named = os.environ.get("DOWNPOUR_BINARY")
    if named:
        return named
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "downpour")
    if os.path.isfile(own):
        return own if os.access(own, os.X_OK) else _kept(_read(own))
    packed = _packed()
    if packed:
        return _kept(packed)
    found = shutil.which("downpour")
    if found:
        return found
    raise FileNotFoundError(
        "the package downpour_spark carries no program: it was not built by `cargo xtask dist --spark`. "
        "Set DOWNPOUR_BINARY to one that every executor finds")


def _read(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


def _packed() -> bytes | None:
    """Out of a zip, as --py-files gives packages."""
    try:
        return pkgutil.get_data("downpour_spark", "bin/downpour")
    except OSError:
        return None


def _kept(data: bytes) -> str:
    """A copy that can be run; all processes of this user on this host share it."""
    folder = os.path.join(tempfile.gettempdir(), f"downpour-spark-bin-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    target = os.path.join(folder, hashlib.sha256(data).hexdigest()[:32])
    if not os.path.exists(target):
        handle, fresh = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(fresh, 0o700)
        os.replace(fresh, target)
    return target
