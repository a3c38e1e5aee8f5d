"""HDFS over HTTP: what its NameNode does, what it says, and what gets lost on the way."""

from __future__ import annotations

import gc
import io
import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, TypeVar

import duckdb
import fsspec
import pyarrow.parquet as pq
import pytest
import requests
import urllib3
from fsspec.implementations.webhdfs import WebHDFS

from semel.core.errors import ConfigError, LedgerConflict, ServiceError, TransientError
from semel.core.ledger import Outcome, firsts
from semel.core.records import Commit
from semel.sinks.files import sink as sink_module
from semel.sinks.files.sink import FilesSink
from semel.storage.webhdfs import WebHdfsStore
from semel_lab.embedded.hdfs import Hdfs
from tests.engine.harness import some, wait_until
from tests.faults import KINDS, Faults, before
from tests.patience import PATIENCE
from tests.sinks.files.conftest import Folder
from tests.sinks.target import FIRST, advance, at_first, records, values

pytestmark = pytest.mark.integration

T = TypeVar("T")
ENTRY, LANDING = "renameoptions=NONE", "renameoptions=OVERWRITE"


def ids(place: Folder) -> list[int]:
    """The contents of the visible files."""
    filesystem, root = fsspec.url_to_fs(place.where)
    found: list[int] = []
    for file in place.files():
        content = io.BytesIO(filesystem.cat_file(f"{root}/{file}"))
        found += pq.read_table(content).column("id").to_pylist()
    return sorted(found)


def delivered(sink: FilesSink, first: int, until: int) -> Outcome:
    """As the engine does it: the same again after an error whose outcome is not known."""
    staged = None
    for _ in range(500):
        try:
            staged = staged or sink.stage(values(first, until))
            return sink.commit_staged([advance(first, until)], staged)
        except TransientError:
            continue
    raise AssertionError("it never came about")


@pytest.fixture(scope="module")
def ways(hdfs: Hdfs) -> Iterator[tuple[Faults, Faults]]:
    """The faults on the way to the NameNode, and on the way to the DataNode."""
    names = before(f"http://127.0.0.1:{hdfs.port}")
    data = before(f"http://127.0.0.1:{hdfs._ports['data-http']}")
    with names as to_names, data as to_data:
        yield to_names, to_data


@pytest.fixture
def behind(ways: tuple[Faults, Faults], hdfs: Hdfs, directory: Folder) -> Iterator[Folder]:
    """The directory, by these ways."""
    names, data = ways
    reached = f"127.0.0.1:{hdfs.port}", names.url.partition("//")[2]

    class Behind(Folder):
        def config(self, name: str = "c", keys: Any = None) -> dict[str, str]:
            proxy = {data.backend: data.url}
            options = {
                "path": self.where.replace(*reached),
                "storage.options.data_proxy": json.dumps(proxy),
            }
            return super().config(name, {**options, **(keys or {})})

    yield Behind(directory.where)
    names.clear()
    data.clear()


class TestLostAnswers:
    @pytest.mark.parametrize(
        ("request_of", "kind"),
        some(product([ENTRY, LANDING], KINDS), {(ENTRY, "lost"), (LANDING, "twice")}),
    )
    def test_a_rename_loses_nothing_and_doubles_nothing(
        self, request_of: str, kind: str, behind: Folder, ways: tuple[Faults, Faults]
    ) -> None:
        sink = behind.sink(keys={"flush.size": 4})
        sink.commit([advance(0, 10)], values(0, 10))
        fault = ways[0].come(kind, "PUT", request_of)
        delivered(sink, 10, 20)
        assert fault.matched
        assert ids(behind) == list(range(20))
        again = behind.sink()
        assert [e.position for e in again.entries()] == [20]
        assert again.commit([advance(10, 20)], values(10, 20)) is Outcome.REPLAYED
        assert ids(behind) == list(range(20))

    @pytest.mark.parametrize(
        ("part", "kind"),
        some(
            product(["/staged/", "_semel/c/."], KINDS),
            {("/staged/", "lost"), ("_semel/c/.", "twice")},
        ),
    )
    def test_a_data_node_that_fails_while_it_is_sent_something(
        self, part: str, kind: str, behind: Folder, ways: tuple[Faults, Faults]
    ) -> None:
        sink = behind.sink()
        fault = ways[1].come(kind, "PUT", part, times=2)
        assert delivered(sink, 0, 10) is Outcome.APPLIED
        assert fault.matched
        assert ids(behind) == list(range(10))

    @pytest.mark.parametrize("kind", some(("refused", "lost", "cut"), {"refused", "cut"}))
    def test_an_error_of_a_data_node_is_not_mistaken_for_a_file(
        self, kind: str, behind: Folder, ways: tuple[Faults, Faults]
    ) -> None:
        behind.sink()
        fault = ways[1].come(kind, "GET", "op=OPEN")
        with pytest.raises(TransientError):
            behind.made().entries()
        assert fault.matched
        assert [e.position for e in behind.made().entries()] == [0]

    @pytest.mark.parametrize("kind", ["json", "parquet"])
    def test_an_error_of_a_data_node_is_not_mistaken_for_a_row(
        self, kind: str, behind: Folder, ways: tuple[Faults, Faults]
    ) -> None:
        keys = {"format": kind}
        behind.sink(keys=keys).commit([advance(0, 10)], values(0, 10))
        fault = ways[1].come("lost", "GET", f".{kind}?op=OPEN", times=9)
        with pytest.raises(TransientError):
            behind.made(keys=keys).snapshot(["t"])
        assert fault.matched
        ways[1].clear()
        assert sum(behind.made(keys=keys).snapshot(["t"]).rows.values()) == 10


class TestGateways:
    """A gateway that does not know ``renameoptions``, and answers true or false."""

    @pytest.fixture(autouse=True)
    def deaf(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = WebHDFS._call

        def call(self: Any, operation: str, *arguments: Any, **keys: Any) -> Any:
            keys.pop("renameoptions", None)
            return original(self, operation, *arguments, **keys)

        monkeypatch.setattr(WebHDFS, "_call", call)

    def test_of_two_that_create_the_same_entry_one_is_fenced(self, directory: Folder) -> None:
        sink, other = directory.sink(), directory.sink()

        def overtake() -> None:
            other.commit([advance(0, 10)], values(0, 10))

        overtaken = at_first(sink_module, "sink.before_commit", overtake)
        with overtaken, pytest.raises(LedgerConflict, match="is at 10"):
            sink.commit([advance(0, 7)], values(0, 7))
        assert ids(directory) == list(range(10))
        assert not [f for f in directory.all() if "/." in f], "what was written beside is gone"

    def test_a_file_that_is_in_the_way_is_reported_and_not_lost(self, directory: Folder) -> None:
        sink = directory.sink()
        sink.commit([advance(0, 10)], values(0, 10))
        (file,) = directory.files()
        sink.set_positions(firsts({FIRST: 0}))
        with pytest.raises(ServiceError, match=r"already exists.*move it away"):
            sink.commit([advance(0, 10)], values(0, 10))
        filesystem, root = fsspec.url_to_fs(directory.where)
        filesystem.rm(f"{root}/{file}")
        assert directory.sink().commit([advance(0, 10)], values(0, 10)) is Outcome.REPLAYED
        assert ids(directory) == list(range(10))


def test_a_file_that_is_read_and_written_again_replaces_the_first(directory: Folder) -> None:
    sink = directory.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    sink.set_positions(firsts({FIRST: 0}))
    assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED
    assert ids(directory) == list(range(10))


def test_a_half_written_file_is_not_committed(directory: Folder) -> None:
    """Its writer is gone, or still at it: HDFS would rename it all the same."""
    sink = directory.sink()
    staged = sink.stage(values(0, 10))
    (file,) = staged.files
    filesystem, root = fsspec.url_to_fs(directory.where)
    whole = filesystem.cat_file(f"{root}/{file.staged}")
    filesystem.rm(f"{root}/{file.staged}")
    stream = filesystem.open(f"{root}/{file.staged}", "wb", block_size=1)
    stream.write(whole[:-5])
    stream.flush(force=True)
    with pytest.raises(ConfigError, match="is missing or incomplete"):
        sink.commit_staged([advance(0, 10)], staged)
    assert directory.files() == []


def passed(call: Callable[[], T], why: set[str]) -> T:
    """The outcome of a call that is retried after transient errors, which ``why`` collects."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except TransientError as error:
            assert time.monotonic() < until, error
            why.add(str(error))
            time.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize("reached", ["sink.before_commit", "sink.after_commit"])
def test_a_name_node_that_is_killed_in_the_middle_of_a_commit(
    reached: str, directory: Folder, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused connections, safe mode, a DataNode that is not there yet: all pass."""
    sink = directory.sink(keys={"flush.size": 4})
    sink.commit([advance(0, 10)], values(0, 10))
    starting: list[threading.Thread] = []

    def kill(place: str) -> None:
        if place == reached and not starting:
            hdfs.kill()
            starting.append(threading.Thread(target=hdfs.start))
            starting[0].start()

    monkeypatch.setattr(sink_module, "hit", kill)
    staged = sink.stage(values(10, 20))
    why: set[str] = set()
    outcome = passed(lambda: sink.commit_staged([advance(10, 20)], staged), why)
    starting[0].join(PATIENCE)
    assert why
    assert outcome is (Outcome.APPLIED if reached == "sink.before_commit" else Outcome.REPLAYED)
    assert ids(directory) == list(range(20))
    another = passed(directory.sink, why)
    passed(lambda: another.commit([advance(20, 30)], values(20, 30)), why)
    assert ids(directory) == list(range(30))


def test_who_may_not_write_is_told_who_and_where(directory: Folder, hdfs: Hdfs) -> None:
    directory.sink()
    url = f"{hdfs.url}/{directory.where.rpartition('/')[2]}"
    with pytest.raises(ServiceError, match=r"access is denied.*user=dr.who.*inode=.*_semel"):
        directory.sink("other", {"path": url})
    with pytest.raises(ServiceError, match=r"access is denied.*user=somebody"):
        directory.sink("other", {"path": url, "storage.options.user": "somebody"})


def test_an_address_with_another_protocol_or_no_server_is_reported(hdfs: Hdfs) -> None:
    place = Folder(f"webhdfs://semel@127.0.0.1:{hdfs._ports['data-http']}/x")
    with pytest.raises(ServiceError, match="IllegalArgumentException"):
        place.sink()
    with pytest.raises(TransientError, match=r"127.0.0.1:1: .*Connection refused") as failure:
        Folder("webhdfs://127.0.0.1:1/x").sink(keys={"storage.options.token": "a-secret"})
    assert "a-secret" not in str(failure.value)


@pytest.mark.parametrize(
    ("where", "options", "port"),
    [("h", {}, 9870), ("h", {"use_https": True}, 9871), ("h:8", {}, 8), ("h", {"port": 7}, 7)],
)
def test_the_port_is_that_of_hadoop_3(where: str, options: dict[str, Any], port: int) -> None:
    assert f":{port}/" in WebHdfsStore(f"webhdfs://{where}/x", options).filesystem.url


def test_a_login_that_is_refused_is_not_tried_again(
    directory: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = requests.Response()
    answer.status_code, answer.reason = 401, "Authentication required"
    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", lambda *_, **__: answer)
    with pytest.raises(ServiceError, match="access is denied: 401 Authentication required"):
        directory.made().entries()


def test_names_that_must_be_escaped(directory: Folder) -> None:
    keys = {"partitioner.class": "field", "partition.field.name": "kind"}
    sink = directory.sink(keys=keys)
    kinds = ["a b", "ä+%20", "x:y?z#", "=&;", None]
    rows = [{"id": i, "kind": kind} for i, kind in enumerate(kinds)]
    sink.commit([advance(0, 5)], Commit([records(rows)]))
    assert ids(directory) == list(range(5))


def test_others_read_it_where_it_is(directory: Folder, hdfs: Hdfs) -> None:
    sink = directory.sink(keys={"provenance": "true", "flush.size": 3})
    sink.commit([advance(0, 10)], values(0, 10))
    found = directory.made(keys={"provenance": "true"}).snapshot(["t"])
    assert sorted(found.records["t"].column("offset").to_pylist()) == list(range(10))
    where = directory.where.replace(f"{hdfs.user}@", "")
    with duckdb.connect() as connection:
        connection.register_filesystem(
            fsspec.filesystem("webhdfs", host="127.0.0.1", port=hdfs.port, user=hdfs.user)
        )
        query = f"SELECT id FROM read_parquet('{where}/t/**/*.parquet') ORDER BY id"
        assert [r[0] for r in connection.sql(query).fetchall()] == list(range(10))


class TestUploads:
    def test_a_file_that_is_removed_while_it_is_sent_is_sent_again(self, directory: Folder) -> None:
        sink = directory.sink()
        store, name = sink._store, "_semel/c/staged/1-x"
        assert isinstance(store, WebHdfsStore)

        def content() -> Iterator[bytes]:
            yield b"x" * 100_000
            wait_until(lambda: store.exists(name))
            store.delete([name])
            yield b"x" * 100_000

        removed = pytest.raises(TransientError, match="was removed while it was sent")
        with removed, store.translated():
            store._send(name, content(), 200_000)  # type: ignore[arg-type]

    @pytest.mark.parametrize("part", ["_semel/c/staged/", "_semel/c/."])
    def test_what_arrives_in_part_does_not_count(
        self, part: str, directory: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A proxy in between may cut it short, and still return a success."""
        sink = directory.sink()
        original, cut = requests.Session.request, []

        def request(session: Any, method: str, url: str, **keys: Any) -> Any:
            content = keys.get("data")
            if content and part in url and not cut:
                cut.append(url)
                whole = content if isinstance(content, bytes) else content.read()
                keys["data"] = whole[:-1]
            return original(session, method, url, **keys)

        monkeypatch.setattr(requests.Session, "request", request)
        with pytest.raises(TransientError, match=rf"bytes of {part}.* have arrived"):
            sink.commit_staged([advance(0, 10)], sink.stage(values(0, 10)))
        assert cut
        assert delivered(sink, 0, 10) is Outcome.APPLIED
        assert ids(directory) == list(range(10))

    @pytest.mark.parametrize("keys", some([{}, {"format": "json"}, {"format": "avro"}], [{}]))
    def test_what_is_discarded_is_not_sent(
        self, keys: dict[str, str], directory: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = directory.sink(keys=keys)
        sink.commit([advance(0, 1)], values(0, 1))  # the topic's fields are known now
        sent: list[str] = []
        monkeypatch.setattr(WebHdfsStore, "_send", lambda _, name, *__: sent.append(name))
        stager = sink.stager("x")
        stager.add(values(1, 10))
        stager.discard()
        forgotten = sink._store.open("_semel/c/staged/x")
        forgotten.write(b"x")
        del forgotten, stager
        gc.collect()
        assert sent == []


class Answer(requests.Response):
    """What a NameNode or a gateway may say."""

    def __init__(self, status: int, headers: dict[str, str], told: Any = None) -> None:
        super().__init__()
        self.status_code = status
        self.headers.update(headers)
        self._content = b"" if told is None else json.dumps(told).encode()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """Those of servers that are not there."""
    left: list[Answer] = []

    def send(adapter: Any, request: Any, **keys: Any) -> Any:
        answer = left.pop(0)
        for hook in request.hooks["response"]:
            hook(answer)
        answer.request, answer.url = request, request.url
        return answer

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    return left


def test_the_connect_timeout_equals_the_read_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connect timeout applies until content is sent."""
    limits: list[Any] = []

    def urlopen(*_: Any, timeout: Any, **__: Any) -> Any:
        limits.append(timeout)
        raise OSError("enough")

    monkeypatch.setattr(urllib3.HTTPConnectionPool, "urlopen", urlopen)
    with pytest.raises(TransientError, match="enough"):
        WebHdfsStore("webhdfs://nowhere/x", {}).names("a")
    assert [(t.connect_timeout, t.read_timeout) for t in limits] == [(60, 60)]


class TestAnswers:
    def store(self, **options: Any) -> WebHdfsStore:
        return WebHdfsStore("webhdfs://nowhere/x", options)

    @pytest.mark.parametrize("status", [200, 201])
    def test_content_that_nobody_asked_for_was_not_written(
        self, status: int, answers: list[Answer]
    ) -> None:
        answers.append(Answer(status, {}))
        with pytest.raises(ServiceError, match=r"no Location") as refusal:
            self.store().create("a/b", b"x")
        assert not isinstance(refusal.value, TransientError)

    def test_an_error_about_an_invalid_address_hides_the_token(self, answers: list[Answer]) -> None:
        for where in ("dn:9864", "ftp://dn"):
            answers.append(Answer(307, {"Location": f"{where}/x?delegation=a-secret"}))
            with pytest.raises(ConfigError, match=r"storage.options.data_proxy") as refusal:
                self.store(token="a-secret").create("a/b", b"x")
            assert "a-secret" not in str(refusal.value)
        for where in ("http://:x", "http://"):
            answers.append(Answer(307, {"Location": f"{where}/x?delegation=a-secret"}))
            with pytest.raises(TransientError) as failure:
                self.store(token="a-secret").create("a/b", b"x")
            assert "a-secret" not in str(failure.value)

    @pytest.mark.parametrize("name", ["IllegalArgumentException", "InvalidPathException"])
    def test_what_is_refused_for_ever_is_not_tried_again(
        self, name: str, answers: list[Answer]
    ) -> None:
        told = {"RemoteException": {"exception": name, "message": "Invalid path name /a:b"}}
        answers.append(Answer(400, {}, told))
        with pytest.raises(ServiceError, match=f"Invalid path name /a:b .{name}") as refusal:
            self.store().names("a")
        assert not isinstance(refusal.value, TransientError)

    @pytest.mark.parametrize("given", ["/mine.pem", False])
    def test_a_configured_authority_overrides_the_environments(
        self, given: str | bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used = []

        def send(*_: Any, verify: Any, **__: Any) -> Any:
            used.append(verify)
            raise requests.ConnectionError("enough")

        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/others.pem")
        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
        with pytest.raises(TransientError, match="enough"):
            self.store(use_https=True, session_verify=given).names("a")
        assert used == [given]

    def test_an_untrusted_certificate_is_not_tried_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        why = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed"

        def send(*_: Any, **__: Any) -> Any:
            raise requests.exceptions.SSLError(ssl.SSLCertVerificationError(1, why))

        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
        with pytest.raises(ServiceError, match=r"self-signed.*session_verify") as refusal:
            self.store(use_https=True).names("a")
        assert not isinstance(refusal.value, TransientError)


@pytest.mark.parametrize(
    ("where", "options", "said"),
    [
        (
            "me:a-secret@nn/x",
            {},
            r"path=\.\.\.@nn/x: a password in the URL.*storage.options.password",
        ),
        ("me:a-secret@nn:98x/x", {}, r"path=\.\.\.@nn:98x/x is not a URL: Port"),
        ("nn:98700/x", {}, "is not a URL: Port out of range"),
        ("[bad/x", {}, "is not a URL"),
        ("/x", {}, "names no NameNode"),
        ("nn:1/x", {"port": 2}, "already names the port: remove storage.options.port"),
        ("me@nn/x", {"user": "you"}, "already names the user: remove storage.options.user"),
        ("nn/x", {"data_proxy": "dn"}, "storage.options.data_proxy must be an object in JSON"),
        ("nn/x", {"data_proxy": '{"dn": 1}'}, "storage.options.data_proxy must be an object"),
        (
            "nn/x",
            {"usr": "me"},
            r"storage.options.usr is not an option.*did you mean.*options.user\?$",
        ),
        ("nn/x", {"kerberos": "true"}, "pip install requests-kerberos"),
    ],
)
def test_mistakes_are_reported_without_the_password(
    where: str, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "requests_kerberos", None)
    keys = {f"storage.options.{k}": v for k, v in options.items()}
    with pytest.raises(ConfigError, match=said) as refusal:
        Folder(f"webhdfs://{where}").made(keys=keys).entries()
    assert "a-secret" not in str(refusal.value)


def test_an_invalid_address_for_libhdfs_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a URL: Invalid IPv6"):
        Folder("hdfs://[bad/x").made(keys={"delivery": "at-most-once"})
