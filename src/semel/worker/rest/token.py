"""The token that a worker asks for if nothing else is configured.

It is in a private file of the user who runs the worker, and the same for all workers of that user
on this machine. :data:`VARIABLE` overrides it, for workers in containers and for commands that call
a worker elsewhere.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from semel.core.errors import ConfigError

VARIABLE = "SEMEL_WORKER_TOKEN"
_FILE = "worker-token"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def token_file() -> Path:
    """Where the token is."""
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return root / "semel" / _FILE


def token_for(url: str) -> str | None:
    """The token for requests to a worker's URL: that of the environment, or else this machine's, if
    the worker is on this machine. None if there is none.

    Raises:
        ConfigError: its file cannot be used.
    """
    if token := os.environ.get(VARIABLE, "").strip():
        return token
    file = token_file()
    return _read(file) if is_local(urlsplit(url).hostname or "") and file.exists() else None


def worker_token() -> str:
    """The token that a worker asks for, made where there is none.

    Raises:
        ConfigError: its file cannot be used.
    """
    if token := os.environ.get(VARIABLE, "").strip():
        return token
    file = token_file()
    if not file.exists():
        with suppress(FileExistsError):
            _create(file)
    return _read(file)


def where() -> str:
    """Where the token comes from, for messages."""
    return VARIABLE if os.environ.get(VARIABLE, "").strip() else str(token_file())


def is_local(host: str) -> bool:
    """Whether a host is this machine, by a name or an address that needs no look-up."""
    if host.lower() in ("localhost", socket.gethostname().lower()):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _create(file: Path) -> None:
    """Raises FileExistsError if it is there. Another process sees it whole, or not at all."""
    draft = file.with_name(f"{_FILE}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.touch(0o600, exist_ok=False)
        draft.write_text(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(draft, file)
        finally:
            draft.unlink()
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"the token that requests must carry cannot be kept in {file} ({error.strerror}). "
            f"Set {VARIABLE} to a token, XDG_STATE_HOME to another folder, or configure a login "
            "(docs/worker.md#security)"
        ) from None


def _read(file: Path) -> str:
    try:
        status, token = file.stat(), file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the worker's token in {file} cannot be read ({why})") from None
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS or not token:
        wrong = "is empty" if not token else "is not only yours to read"
        raise ConfigError(
            f"{file}, the worker's token, {wrong}: remove it, and the next worker that starts "
            "makes a new one"
        )
    return token
