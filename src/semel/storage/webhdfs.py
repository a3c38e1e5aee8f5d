"""HDFS over HTTP: a NameNode's WebHDFS, or a gateway that speaks it.

libhdfs's rename replaces an existing file. The NameNode itself can avoid that: ``RENAME`` with
``renameoptions=NONE`` takes its lock, checks that there is no target, and only then renames. A
gateway (HttpFS) knows no such option, but its ``RENAME`` never replaces a file, and answers false.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import SplitResult, urlsplit

import requests
from requests.adapters import HTTPAdapter

from semel.core.answers import limit_requests
from semel.core.errors import ConfigError, SemelError, ServiceError, TransientError, misconfigured
from semel.storage.store import Store, shown, split_url

_PORT, _SECURE_PORT = 9870, 9871
"""The NameNode's default ports in Hadoop 3; fsspec's default is that of Hadoop 2."""

_ERRORS: Mapping[str, type[Exception]] = {
    "FileAlreadyExistsException": FileExistsError,
    "FileNotFoundException": FileNotFoundError,
    "ParentNotDirectoryException": NotADirectoryError,
    "AccessControlException": PermissionError,
    "AuthenticationException": PermissionError,
    "AuthorizationException": PermissionError,
    "InvalidToken": PermissionError,
    "SecurityException": PermissionError,
}
"""Hadoop's exceptions that correspond to Python's, by name."""
_FINAL = frozenset(
    {"IllegalArgumentException", "InvalidPathException", "UnsupportedOperationException"}
)
"""Exceptions that recur whenever the request is repeated."""

_QUERY = re.compile(r"\?\S*")


class WebHdfsStore(Store):
    """A directory in HDFS. ``timeout`` is the seconds that may pass without any data: otherwise a
    request to a NameNode whose machine is gone would wait forever."""

    def __init__(
        self, where: str, options: Mapping[str, Any], timeout: float = 60.0, key: str = "path"
    ) -> None:
        self._timeout = timeout
        parts = split_url(where, key)
        _check(where, parts, options, key)
        port = _SECURE_PORT if options.get("use_https") else _PORT
        super().__init__(where, options if parts.port else {"port": port, **options}, key)

    def _driver(self) -> tuple[Any, str]:
        try:
            filesystem, root = super()._driver()
        except ModuleNotFoundError as missing:
            package = str(missing.name).replace("_", "-")
            raise misconfigured(
                "storage.options.kerberos",
                f"{self._key}={self.where}: storage.options.kerberos=true needs the package "
                f"{package}: pip install {package}",
            ) from None
        session = filesystem.session
        session.hooks["response"] = [_checked]
        limit_requests(session)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter(session.verify, self._timeout))
        return filesystem, root

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        with super().translated():
            try:
                yield
            except _FinalError as error:
                raise ServiceError(f"{self.where}: {error}") from None
            except requests.RequestException as error:  # its text may hold a URL with a token
                raise OSError(_QUERY.sub("", str(error)) or type(error).__name__) from None

    def read(self, name: str) -> bytes:
        with self.translated():
            return bytes(self._redirected("OPEN", "get", name).content)

    def create(self, name: str, content: bytes) -> None:
        """Write a temporary file and rename it exclusively.

        Without an answer, it is unknown whether the file was renamed or will be in a moment. No
        other process knows the temporary name, so the content cannot get there in a second way.
        """
        beside = f"{name.rpartition('/')[0]}/.{uuid.uuid4().hex}"
        with self.translated():
            self._send(beside, content, len(content))
            try:
                if self._renamed(beside, name, "NONE"):
                    return
            except FileNotFoundError as gone:
                raise OSError(f"whether {name} was created is not known: {gone}") from None
            except FileExistsError:
                pass
        self._forget(beside)
        if self.exists(name):
            raise FileExistsError(name)
        raise TransientError(f"{self.where}: {name} was not created, and the server gave no reason")

    def open(self, name: str) -> BinaryIO:
        """The file is sent when it is complete: fsspec would append each part, which needs more
        requests and fails in directories with erasure coding."""

        def send(content: BinaryIO, size: int) -> None:
            with self.translated():
                self._send(name, content, size)

        return _Upload(send)

    def move(self, source: str, target: str, size: int) -> bool:
        with self.translated():
            self._make_room(target)
            try:
                if self._renamed(source, target, "OVERWRITE"):
                    return True
            except FileNotFoundError:
                self._check_gone(source, target)
                return False
        if not self.exists(source):
            return False
        raise ServiceError(
            f"{self.where}/{target} already exists, and this gateway does not replace it: "
            f"move it away, or set {self._key} to a NameNode's own address"
        )

    def _send(self, name: str, content: bytes | BinaryIO, size: int) -> None:
        """Send the content to a new file whose name nobody else knows. A request that arrives a
        second time, late, must not start the file over: it may be in the middle of a rename."""
        try:
            self._redirected("CREATE", "put", name, content, overwrite="false")
        except FileExistsError as there:
            raise OSError(f"{name} was sent twice: {there}") from None
        except FileNotFoundError as gone:
            raise OSError(f"{name} was removed while it was sent: {gone}") from None
        arrived = self.size(name)
        if arrived != size:
            raise OSError(f"{arrived} bytes of {name} have arrived, {size} were sent")

    def _renamed(self, source: str, target: str, option: str) -> bool:
        """A NameNode answers with nothing or an error, a gateway with true or false."""
        filesystem = self.filesystem
        answer = filesystem._call(
            "RENAME",
            method="put",
            path=self.path(source),
            destination=self.path(target),
            renameoptions=option,
        )
        return not answer.content or answer.json().get("boolean") is not False

    def _redirected(
        self, operation: str, method: str, name: str, content: Any = None, **more: str
    ) -> Any:
        """A NameNode redirects to a DataNode; a gateway may answer itself."""
        filesystem = self.filesystem
        path = self.path(name)
        answer = filesystem._call(operation, method=method, path=path, redirect=False, **more)
        where = answer.headers.get("Location")
        if where is None and content is None:
            return answer
        if where is None:
            raise ServiceError(
                f"{self.where}: {operation} was answered with {answer.status_code}, but not with "
                "where to send the content (no Location). A proxy in between must keep that header"
            )
        address = filesystem._apply_proxy(where)
        if not address.startswith(("http://", "https://")):
            raise ConfigError(
                f"{self.where}: the NameNode sends files to {address.partition('?')[0]}, which is "
                "not an http:// address. Let storage.options.data_proxy replace it with one"
            )
        headers = {} if content is None else {"content-type": "application/octet-stream"}
        return filesystem.session.request(method, address, data=content, headers=headers)

    def _forget(self, name: str) -> None:
        with contextlib.suppress(SemelError):  # it is small, and nobody reads it
            self.delete([name])


def _check(where: str, parts: SplitResult, options: Mapping[str, Any], key: str) -> None:
    """Raises ConfigError: URL and options do not go together."""
    if parts.password is not None:
        raise misconfigured(
            key,
            f"{key}={shown(where)}: a password in the URL would be seen in every "
            "message. Set storage.options.user and storage.options.password instead",
        )
    authority = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    if not parts.hostname and "host" not in options:
        raise misconfigured(
            key, f"{key}={where} names no NameNode: webhdfs://namenode:{_PORT}/folder"
        )
    for name, value in authority.items():
        if value and name in options:
            raise misconfigured(
                f"storage.options.{name}",
                f"{key}={where} already names the {name}: remove storage.options.{name}",
            )
    proxy = options.get("data_proxy", {})
    if not isinstance(proxy, Mapping) or not all(isinstance(v, str) for v in proxy.values()):
        raise misconfigured(
            "storage.options.data_proxy",
            "storage.options.data_proxy must be an object in JSON that replaces addresses "
            'with others, such as {"http://datanode:9864": "https://gateway:8443"}',
        )


class _Upload(io.BufferedRandom):
    """A file that is uploaded when it is closed, unless it is abandoned."""

    def __init__(self, send: Callable[[BinaryIO, int], None]) -> None:
        self._send = send
        super().__init__(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115

    def close(self) -> None:
        if not self.closed:
            try:
                size = self.seek(0, io.SEEK_END)
                self.seek(0)
                self._send(self, size)
            finally:
                super().close()

    def abandon(self) -> None:
        super().close()

    __del__ = abandon


class _FinalError(Exception):
    """An error that must not be retried."""


class _Adapter(HTTPAdapter):
    """Waits for answers, with a timeout.

    ``verify`` is the session's setting: requests on its own would prefer REQUESTS_CA_BUNDLE.
    """

    def __init__(self, verify: bool | str, timeout: float) -> None:
        super().__init__()
        self._verify = verify
        self._timeout = timeout

    def send(self, request: Any, *arguments: Any, **keys: Any) -> Any:
        patient = {**keys, "timeout": keys.get("timeout") or self._timeout}
        if self._verify is not True:
            patient["verify"] = self._verify
        try:
            return super().send(request, *arguments, **patient)
        except requests.RequestException as error:  # its text holds the URL with a token
            cause = error.args[0] if error.args else error
            reason = getattr(cause, "reason", None) or cause
            text = f"{urlsplit(request.url).netloc}: {reason}"
            if "CERTIFICATE_VERIFY_FAILED" in text:
                raise _FinalError(
                    f"{text}. Set storage.options.session_verify to the file of the authority's "
                    "certificate"
                ) from None
            raise OSError(text) from None


def _checked(answer: requests.Response, **_: Any) -> None:
    """Raise Python's errors; fsspec does not check a DataNode's answer at all.

    Raises:
        OSError, _FinalError: the answer is an error.
    """
    if answer.status_code < 400:
        return
    try:
        remote = answer.json()["RemoteException"]
        name, reason = str(remote["exception"]), str(remote["message"]).strip()
    except (ValueError, KeyError, TypeError):
        name, reason = "", f"{answer.status_code} {answer.reason}"
    if not name and answer.status_code == 401:
        name = "AuthenticationException"
    first = reason.splitlines()[0] if reason else name
    kind = _FinalError if name in _FINAL else _ERRORS.get(name, OSError)
    raise kind(f"{first} ({name})" if name else first)
