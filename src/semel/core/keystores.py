"""Java's trust stores, read by Java's own keytool."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from semel.core.answers import content_of
from semel.core.errors import misconfigured

_LOCATION = "ssl.truststore.location"
_PATIENCE = 60.0
_ENTRY = re.compile(r"^Entry type: (\w+)", re.MULTILINE)
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_PASSWORD = "SEMEL_STORE_PASSWORD"


def authorities(location: str, password: str, prefix: str = "") -> str:
    """The trusted certificates of a JKS, JCEKS or PKCS12 store, or of a PEM file, as PEM.

    Args:
        prefix: what stands before ``ssl.truststore.location`` in the configuration.

    Raises:
        ConfigError: the file is not there, the password is wrong, or nothing in it is trusted.
    """
    where = f"{prefix}{_LOCATION}"
    try:
        facts = Path(location).stat()
        content = content_of(Path(location))
        if b"-----BEGIN " in content:
            return content.decode("ascii", errors="ignore")
        return _read(location, password, (facts.st_mtime_ns, facts.st_size, facts.st_ino))
    except OSError as error:
        why = f" cannot be read: {error.strerror}"
    except _Unreadable as error:
        why = str(error).replace("ssl.truststore.", f"{prefix}ssl.truststore.")
    raise misconfigured(where, f"{where}={location}{why}")


class _Unreadable(Exception):
    """Why a store cannot be read; the message continues after its location."""


@lru_cache(maxsize=16)
def _read(location: str, password: str, _version: tuple[int, ...]) -> str:
    try:
        done = subprocess.run(
            [
                *(_keytool(), "-J-Duser.language=en", "-J-XX:TieredStopAtLevel=1"),
                *("-list", "-rfc", "-keystore", location, "-storepass:env", _PASSWORD),
            ],
            env={**os.environ, _PASSWORD: password},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _Unreadable(f": keytool has not read it within {_PATIENCE:.0f} s") from None
    if done.returncode != 0:
        reason = (done.stdout.strip() or done.stderr.strip()).splitlines()
        raise _Unreadable(
            " cannot be read with ssl.truststore.password: "
            + (reason[0] if reason else f"keytool ended with code {done.returncode}"),
        )
    _, *parts = _ENTRY.split(done.stdout)
    entries = zip(parts[::2], parts[1::2], strict=True)
    trusted = [_CERTIFICATE.findall(text) for kind, text in entries if kind == "trustedCertEntry"]
    if not any(trusted):
        raise _Unreadable(" holds no trusted certificate (keytool -importcert adds one)")
    return "\n".join(certificate for certificates in trusted for certificate in certificates) + "\n"


def _keytool() -> str:
    home = os.environ.get("JAVA_HOME", "")
    executable = shutil.which("keytool", path=f"{home}/bin") if home else None
    executable = executable or shutil.which("keytool")
    if executable is None:
        raise _Unreadable(
            ": no keytool is installed to read it. Set JAVA_HOME, or name a PEM file with "
            "ssl.truststore.type=PEM"
        )
    return executable
