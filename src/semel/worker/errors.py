"""The errors of requests to the worker, with the codes of Kafka Connect's REST API."""

from __future__ import annotations

from semel.core.errors import SemelError


class RequestError(SemelError):
    """A request that cannot be fulfilled."""

    status = 500


class BadRequest(RequestError):
    """The request, or the configuration in it, is invalid."""

    status = 400


class Forbidden(RequestError):
    """The worker's configuration does not allow it."""

    status = 403


class NotFound(RequestError):
    """There is no such connector, task or plugin."""

    status = 404


class Conflict(RequestError):
    """The request conflicts with what exists, or with what another worker is doing."""

    status = 409


class TooManyRequests(RequestError):
    """Others are being answered, and it would take too long to wait for them."""

    status = 429


class ServiceUnavailable(RequestError):
    """A connector's store, or Kafka, does not answer, or what the configuration refers to is not
    there."""

    status = 503


class OtherWorker(RequestError):
    """Another worker, at ``url``, must do it."""

    status = 409

    def __init__(self, url: str) -> None:
        super().__init__(
            "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
        )
        self.url = url


class UnknownWorker(RequestError):
    """The worker that must do it is not known at the moment."""

    status = 409

    def __init__(self) -> None:
        super().__init__(
            "Cannot complete request momentarily due to no known leader URL, likely because a "
            "rebalance was underway."
        )
