"""What an audit may conclude of indices that change while they are read, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from semel.core.ledger import LedgerEntry
from semel.sinks.search import indices
from semel.sinks.search.snapshot import take


@pytest.mark.parametrize(("until", "incomplete"), [(10, set()), (12, {"t"})])
def test_documents_that_are_counted_while_the_ledger_moves_are_not_judged(
    until: int, incomplete: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indices, "find", lambda *_, **_keys: SimpleNamespace(name="i", fields={}))
    ledger, client = Mock(connector="c"), Mock()
    ledger.entries.side_effect = [[LedgerEntry("t", 0, at, 0)] for at in (10, until)]
    client.request.return_value.body = {"hits": {"total": {"value": until}}}
    found = take(client, ledger, {"t": ["i"]}, ["t"], {}, "")
    assert (found.rows, found.incomplete) == ({"i": until}, incomplete)
