"""A denied privilege is answered with the statement that grants it: a user without any privilege
who follows the messages gets a connector that runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ServiceError
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit
from semel.databases import grants
from semel.sinks import sink_class
from semel_lab.embedded.mariadb import MariaDB
from tests import databases
from tests.newcomer import blocks, page
from tests.sinks.target import Target, advance, records

PASSWORD = "x"
KEYED = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "k"}
T0 = TopicPartition("t", 0)


@pytest.fixture
def clerk(target: Target) -> Iterator[str]:
    name = f"a clerk {target.url.rsplit('/', 1)[-1]}"  # a name that needs its quotes
    target.execute(f"CREATE ROLE \"{name}\" LOGIN PASSWORD '{PASSWORD}'")
    yield name
    target.execute(f'DROP OWNED BY "{name}"', f'DROP ROLE "{name}"')


@pytest.fixture
def reader(mariadb: MariaDB) -> Iterator[str]:
    """A user of MariaDB's whose account is of any host, unlike the host that it comes from."""
    mariadb.execute("DROP USER IF EXISTS 'a reader'@'%'")
    mariadb.execute(f"CREATE USER 'a reader'@'%' IDENTIFIED BY '{PASSWORD}'")
    yield "a reader"
    mariadb.execute("DROP USER 'a reader'@'%'")


def granted(run: Callable[[], object], grant: Callable[[str], object]) -> list[str]:
    """Run as often as a privilege is missing, and grant what the message says each time."""
    told: list[str] = []
    while True:
        try:
            run()
        except ServiceError as error:
            advice = re.search(r"Let an administrator, or the owner, run: (.+)", str(error))
            assert advice, error
            assert advice[1] not in told, f"{advice[1]} does not help: {error}"
            told.append(advice[1])
            grant(advice[1])
        else:
            return told


def commit_as(url: str, user: str, **keys: str) -> Callable[[], None]:
    """A whole run of a connector as a user: its tables, its ledger and a commit."""
    system = url.split(":")[1 if url.startswith("jdbc:") else 0]
    raw = {
        "name": "c",
        "connector.class": system,
        "bootstrap.servers": "nowhere:9092",
        "topics": "t",
        "connection.url": url,
        "connection.user": user,
        "connection.password": PASSWORD,
        "auto.create": "true",
        "auto.evolve": "true",
        **keys,
    }

    def run() -> None:
        with closing(sink_class(system)(read(ConnectorConfig, raw))) as sink:
            sink.prepare(["t"])
            sink.start(firsts({T0: 0}))
            position = {e.topic_partition: e.position for e in sink.entries()}[T0]
            batch = records([{"v": 1}], keys=[position], offsets=[position])
            done = sink.commit([advance(position, position + 1)], Commit([batch]))
            assert done is Outcome.APPLIED

    return run


def elsewhere(url: str) -> str:
    """A URL of PostgreSQL's without the user."""
    where = urlsplit(url)
    return f"postgresql://{where.hostname}:{where.port}{where.path}"


def test_postgresql_says_what_a_user_without_privileges_lacks(target: Target, clerk: str) -> None:
    told = granted(commit_as(elsewhere(target.url), clerk, **KEYED), target.execute)
    assert told[0] == f'GRANT USAGE, CREATE ON SCHEMA "public" TO "{clerk}"'


def test_postgresql_says_what_tables_of_others_lack(target: Target, clerk: str) -> None:
    """The ledger and the table are somebody else's, and the table is in a schema of its own."""
    target.execute('CREATE SCHEMA "my sales"', 'CREATE TABLE "my sales".t (k bigint PRIMARY KEY)')
    target.sink().prepare([])
    url = elsewhere(target.url)
    keys = KEYED | {"table.name.format": '"my sales".${topic}'}
    told = granted(commit_as(url, clerk, **keys), target.execute)
    rows = "GRANT SELECT, INSERT, UPDATE, DELETE ON"
    assert f'{rows} "semel_offsets" TO "{clerk}"' in told
    assert f'GRANT USAGE, CREATE ON SCHEMA "my sales" TO "{clerk}"' in told
    assert f'ALTER TABLE "my sales"."t" OWNER TO "{clerk}"' in told  # for its new column
    assert target.query('SELECT k, v FROM "my sales".t') == [{"k": 0, "v": 1}]


def test_mariadb_says_what_a_user_without_privileges_lacks(mariadb: MariaDB, reader: str) -> None:
    url = mariadb.create_database("grants")
    told = granted(commit_as(url.partition("?")[0], reader, **KEYED), mariadb.execute)
    assert told[0].endswith("ON `grants`.* TO 'a reader'@'%'")
    mariadb.drop_database("grants")


def test_mariadb_says_what_tables_of_others_lack(mariadb: MariaDB, reader: str) -> None:
    url = mariadb.create_database("grants_tables")
    databases.query(url, "CREATE TABLE t (k bigint PRIMARY KEY)")
    databases.query(url, "CREATE TABLE entry (k bigint PRIMARY KEY)")
    with closing(sink_class("mariadb")(read(ConnectorConfig, mine(url)))) as owner:
        owner.prepare([])
    mariadb.execute("GRANT SELECT ON grants_tables.entry TO 'a reader'@'%'")  # the login
    told = granted(commit_as(url.partition("?")[0], reader, **KEYED), mariadb.execute)
    # MariaDB hides tables from users without a privilege on them, so semel tries to create them.
    rows_and_create = "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON"
    assert f"{rows_and_create} `grants_tables`.`semel_offsets` TO 'a reader'@'%'" in told
    assert f"{rows_and_create} `grants_tables`.`t` TO 'a reader'@'%'" in told
    assert "GRANT ALTER ON `grants_tables`.`t` TO 'a reader'@'%'" in told  # for its new column
    assert databases.query(url, "SELECT k, v FROM t") == [(0, 1)]
    mariadb.drop_database("grants_tables")


@pytest.mark.parametrize("reading", [True, False])
def test_a_source_is_to_be_granted_no_more_than_it_needs(reading: bool) -> None:
    needed = grants.READ if reading else grants.ROWS
    told = grants.postgresql("permission denied for table t", 'SELECT 1 FROM "s"."t"', "a", needed)
    assert told.endswith(f'run: GRANT {needed} ON "s"."t" TO "a"')


def mine(url: str) -> dict[str, str]:
    return {
        "name": "c",
        "connector.class": "mariadb",
        "bootstrap.servers": "nowhere:9092",
        "topics": "t",
        "connection.url": url,
    }


@pytest.mark.parametrize("creates", [True, False])
def test_the_privileges_of_the_page_are_enough_for_postgresql(
    creates: bool, target: Target, clerk: str
) -> None:
    own, given = [b for b in blocks(page("postgresql.md"), "sql") if "GRANT" in b]
    if not creates:
        target.execute("CREATE TABLE orders (k bigint PRIMARY KEY, v bigint)")
        target.sink().prepare([])
    name = urlsplit(target.url).path[1:]
    text = (own if creates else given).replace("shop", name).replace(" TO semel", f' TO "{clerk}"')
    target.execute(*text.replace("\n", " ").strip(" ;").split("; "))
    keys = KEYED | {"table.name.format": "orders"}
    assert not granted(commit_as(elsewhere(target.url), clerk, **keys), target.execute)


@pytest.mark.parametrize("creates", [True, False])
def test_the_privileges_of_the_page_are_enough_for_mariadb(
    creates: bool, mariadb: MariaDB, reader: str
) -> None:
    own, given, _ = [b for b in blocks(page("databases.md"), "sql") if "GRANT" in b]
    url = mariadb.create_database("shop")
    if not creates:
        databases.query(url, "CREATE TABLE orders (k bigint PRIMARY KEY, v bigint)")
        with closing(sink_class("mariadb")(read(ConnectorConfig, mine(url)))) as owner:
            owner.prepare([])
    text = (own if creates else given).replace("'semel'", f"'{reader}'")
    mariadb.execute(*text.replace("\n", " ").strip(" ;").split("; "))
    keys = KEYED | {"table.name.format": "orders"}
    assert not granted(commit_as(url.partition("?")[0], reader, **keys), mariadb.execute)
    mariadb.drop_database("shop")


@pytest.mark.parametrize(
    ("message", "statement"),
    [
        (
            "The SELECT permission was denied on the object 'semel_offsets', database 'd', "
            "schema 'dbo'.",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON [dbo].[semel_offsets] TO [clerk]",
        ),
        (
            "The UPDATE permission was denied on the column 'a' of the object 'o]rders', database "
            "'d', schema 'sales'.",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON [sales].[o]]rders] TO [clerk]",
        ),
        (
            "The ALTER permission was denied on the object 't', database 'd', schema 'dbo'.",
            "GRANT ALTER ON [dbo].[t] TO [clerk]",
        ),
        (
            "CREATE TABLE permission denied in database 'd'.",
            "GRANT CREATE TABLE TO [clerk]; GRANT ALTER ON SCHEMA::dbo TO [clerk]",
        ),
        (
            "permission denied for table semel_offsets",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON [semel_offsets] TO [clerk]",
        ),
    ],
)
def test_sql_server_says_what_a_user_lacks(message: str, statement: str) -> None:
    assert grants.sqlserver(message, "clerk", grants.ROWS).endswith(f"run: {statement}")


def test_mysqls_messages_name_no_database() -> None:
    told = "INSERT command denied to user 'a'@'localhost' for table 'orders'"
    assert grants.mysql(told, "shop", "a@%", grants.ROWS).endswith(
        "run: GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`.`orders` TO 'a'@'%'"
    )


def test_a_message_in_another_language_gets_no_wrong_advice() -> None:
    assert not grants.postgresql("keine Berechtigung für Tabelle t", "", "a", grants.ROWS)
