"""What to run as an administrator where a database denies a privilege.

The databases say which object and, some of them, which privilege is missing. The statements name
the object and the user exactly, so that they can be run as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from semel.databases.names import quote

READ = "SELECT"
ROWS = "SELECT, INSERT, UPDATE, DELETE"
"""What the ledger needs, and tables with upserts and deletes; inserts alone need less."""

_DATABASE = f"{ROWS}, CREATE, ALTER, DROP, CREATE TEMPORARY TABLES"
_OFTEN = "SELECT|INSERT|UPDATE|DELETE"
_TABLES = "(?:table|relation|(?:materialized )?view|foreign table|partitioned table)"


def postgresql(message: str, statement: str, user: str, needed: str) -> str:
    """What helps against an error of the SQLSTATE 42501.

    Args:
        statement: what the server was asked, which says in which schema the object is.
        needed: the privileges that a table needs.
    """
    to = quote(user)

    def named(table: str) -> str:
        """A table as the statement names it: the message leaves its schema out."""
        match = re.search(rf'"(?:[^"]|"")+"\.{re.escape(quote(table))}', statement)
        return match[0] if match else quote(table)

    def on_schema(schema: str) -> str:
        usage = "USAGE" if needed == READ else "USAGE, CREATE"
        return f"GRANT {usage} ON SCHEMA {quote(schema)} TO {to}"

    ways: Mapping[str, Callable[[str], str]] = {
        f"permission denied for {_TABLES} (.+)": lambda n: f"GRANT {needed} ON {named(n)} TO {to}",
        "permission denied for schema (.+)": on_schema,
        "permission denied for sequence (.+)": lambda n: (
            f"GRANT USAGE ON SEQUENCE {named(n)} TO {to}"
        ),
        'temporary tables in database "(.+)"': lambda n: (
            f"GRANT TEMPORARY ON DATABASE {quote(n)} TO {to}"
        ),
        "permission denied for database (.+)": lambda n: (
            f"GRANT CREATE ON DATABASE {quote(n)} TO {to}"
        ),
        f"must be owner of {_TABLES} (.+)": lambda n: f"ALTER TABLE {named(n)} OWNER TO {to}",
        'row-level security policy for table "(.+)"': lambda n: (
            f"CREATE POLICY semel ON {named(n)} TO {to} USING (true) WITH CHECK (true)"
        ),
    }
    return _advice(message, ways)


def mysql(message: str, database: str, account: str, needed: str) -> str:
    """What helps against an error that denies a privilege.

    Args:
        account: as ``CURRENT_USER()`` gives it; the message names the client's host instead.
    """
    user, _, host = account.rpartition("@")
    to = f"'{user}'@'{host}'" if account else ""

    def on_table(verb: str, denied: str, inside: str, table: str) -> str:
        privileges = needed if re.fullmatch(_OFTEN, verb, re.I) else verb.upper()
        if privileges == "CREATE":  # the table may be there: the server hides it from this user
            privileges = f"{needed}, CREATE"
        name = ".".join(f"`{part}`" for part in (inside or database, table))
        return f"GRANT {privileges} ON {name} TO {to or denied}"

    account_ = r"('[^']*'@'[^']*')"
    return _advice(
        message,
        {
            rf"([\w ]+?) command denied to user {account_} for (?:table|column .+ in table) "
            r"[`'](?:([^`']+)`\.`)?([^`']+)[`']": on_table,
            rf"Access denied for user {account_} to database '(.+)'": lambda denied, name: (
                f"GRANT {_DATABASE if needed == ROWS else needed} ON `{name}`.* TO {to or denied}"
            ),
        },
    )


def sqlserver(message: str, user: str, needed: str) -> str:
    """What helps against an error that denies a permission."""
    to = _bracketed(user)

    def on_object(verb: str, name: str, schema: str) -> str:
        privileges = needed if re.fullmatch(_OFTEN, verb) else verb
        return f"GRANT {privileges} ON {_bracketed(schema)}.{_bracketed(name)} TO {to}"

    return _advice(
        message,
        {
            r"The ([A-Z ]+) permission was denied on the (?:column '.+' of the )?object '(.+?)', "
            r"database '.+?', schema '(.+?)'": on_object,
            r"(CREATE [A-Z]+) permission denied in database": lambda verb: (
                f"GRANT {verb} TO {to}; GRANT ALTER ON SCHEMA::dbo TO {to}"
            ),
            r'schema name "(.+?)" either does not exist': lambda schema: (
                f"GRANT ALTER ON SCHEMA::{_bracketed(schema)} TO {to}"
            ),
            rf"permission denied for {_TABLES} (\w+)": lambda table: (  # Babelfish
                f"GRANT {needed} ON {_bracketed(table)} TO {to}"
            ),
        },
    )


def _bracketed(name: str) -> str:
    return f"[{name.replace(']', ']]')}]"


def _advice(message: str, ways: Mapping[str, Callable[..., str]]) -> str:
    """A sentence with the statement for the first pattern that the message has; empty if none."""
    for pattern, way in ways.items():
        if match := re.search(pattern, message):
            return f". Let an administrator, or the owner, run: {way(*match.groups())}"
    return ""
