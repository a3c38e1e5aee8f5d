"""Bulk requests: several run at once, and each action is judged by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import pyarrow as pa

from semel.core.failpoints import hit
from semel.core.ledger import Outcome
from semel.core.records import Rejected
from semel.sinks.search import documents
from semel.sinks.search.client import Client, Failure
from semel.sinks.search.config import SearchConfig
from semel.sinks.search.writing import Part


class Bulk:
    """Sends documents. Its threads start with the first request."""

    def __init__(self, client: Client, config: SearchConfig) -> None:
        self._client = client
        self._config = config
        self._pool: ThreadPoolExecutor | None = None

    def requests(self, lines: pa.Array) -> Iterator[tuple[int, bytes]]:
        """The bodies of the requests for these lines, each with the row it begins with."""
        return documents.requests(lines, self._config.batch_size, self._config.bulk_bytes)

    def send(self, parts: Sequence[Part], still: Callable[[], Outcome]) -> list[Rejected]:
        """Send everything; returns the records that the server refuses.

        ``still`` is asked before each request, which is left out if the ledger says that the
        records are a replay. When this returns or raises, no request is in progress.
        """
        wanted = [
            (part, first, body) for part in parts for first, body in self.requests(part.lines)
        ]

        def send(request: tuple[Part, int, bytes]) -> list[Rejected]:
            part, first, body = request
            if still() is Outcome.REPLAYED:
                return []
            failures = self._client.bulk(part.index, body)
            return [r for f in failures if (r := self._judged(part, first, f)) is not None]

        if self._pool is None:
            # Updates of one document must arrive in their order.
            count = 1 if self._config.merges else self._config.in_flight
            self._pool = ThreadPoolExecutor(count, "semel-bulk")
        sent = [self._pool.submit(send, request) for request in wanted[:-1]]
        try:
            refused = [r for future in sent for r in future.result()]
            hit("sink.before_commit")
            return refused + [r for request in wanted[-1:] for r in send(request)]
        except BaseException:
            wait([future for future in sent if not future.cancel()])
            raise

    def _judged(self, part: Part, first: int, failure: Failure) -> Rejected | None:
        """What it means that the server did not carry out an action.

        On a replay the server already holds this version or a later one, which is no failure.
        """
        if failure.status == 409 and part.versioned:
            return None
        if failure.of_document:
            return part.rejected(first + failure.place, failure.kind, failure.reason)
        raise self._client.problem(failure.status, failure.kind, failure.reason)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
