"""Forwards requests that another worker must answer."""

from __future__ import annotations

import asyncio

import httpx
from fastapi import Request, Response

from semel.config.rest import RestConfig
from semel.core.answers import MOST, too_large
from semel.worker.errors import Elsewhere, RequestError
from semel.worker.rest.tls import client_context
from semel.worker.rest.users import Users

_TIMEOUT = 90.0
_HOP = "forward"
_REQUEST_HEADERS = ("accept", "authorization", "content-type")
_ANSWER_HEADERS = ("content-type", "location")


async def forwarded(
    request: Request, error: Elsewhere, worker: RestConfig, users: Users
) -> Response:
    """The answer of the worker at ``error.url``; ``worker`` configures this one. A request is
    forwarded at most twice, as in Kafka Connect, because leaders change. Workers that need
    the default token may have different ones: they use the cluster's among themselves.

    Raises:
        Elsewhere: it has been forwarded twice.
        RequestError: the worker does not answer.
    """
    hop = request.query_params.get(_HOP)
    if hop == "false":
        raise error
    query = httpx.QueryParams(str(request.url.query)).remove(_HOP)
    query = query.add(_HOP, "true" if hop is None else "false")
    headers = {n: v for n, v in request.headers.items() if n in _REQUEST_HEADERS}
    if users.default_token and (token := users.peer_token()):
        headers["authorization"] = f"Bearer {token}"
    try:
        encrypted = error.url.startswith("https")
        verify = client_context(worker) if encrypted else True
        client = httpx.AsyncClient(timeout=_TIMEOUT, verify=verify, trust_env=False)
        async with asyncio.timeout(_TIMEOUT), client:
            body = await request.body()
            url = error.url + request.scope["raw_path"].decode("ascii")
            asked = client.stream(request.method, url, params=query, headers=headers, content=body)
            content = bytearray()
            async with asked as answer:
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > MOST:
                        raise RequestError(str(too_large(MOST, error.url)))
    except (httpx.HTTPError, TimeoutError) as failed:
        raise RequestError(f"IO Error trying to forward REST request: {failed}") from None
    kept = {n: v for n, v in answer.headers.items() if n in _ANSWER_HEADERS}
    return Response(bytes(content), answer.status_code, kept)
