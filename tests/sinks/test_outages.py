"""What an error of an object store, a file system or a catalog means."""

from __future__ import annotations

import pytest

from semel.core.errors import ServiceError, TransientError, Unavailable
from semel.storage.errors import comes_from, judged


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("Client error with status 403 Forbidden: <Code>AccessDenied</Code>", ServiceError),
        ("An error occurred (NoSuchBucket) when calling PutObject", ServiceError),
        ("The specified bucket does not exist", ServiceError),
        ("SignatureDoesNotMatch", ServiceError),
        ("Server returned non-2xx status code: 401 Unauthorized", ServiceError),
        ("ContainerNotFound: The specified container does not exist.", ServiceError),
        ("Server returned non-2xx status code: 503 Service Unavailable", Unavailable),
        ("An error occurred (SlowDown)", Unavailable),
        ("429 Too Many Requests", Unavailable),
        ("[Errno 28] No space left on device", Unavailable),
        ("Name node is in safe mode", Unavailable),
        ("Failed to find datanode, suggest to check cluster health.", Unavailable),
        ("/f could only be written to 0 of the 1 minReplication nodes.", Unavailable),
        ("<Code>ExpiredToken</Code> The provided token has expired.", ServiceError),
        ("An error occurred (RequestTimeTooSkewed) when calling PutObject", ServiceError),
        ("AuthorizationPermissionMismatch: not authorized to perform this", ServiceError),
        ("Client error with status 403 Forbidden: userRateLimitExceeded", Unavailable),
        ("An error occurred (ThrottlingException): Rate exceeded", Unavailable),
        ("ServerBusy: Operations per second is over the account limit", Unavailable),
        ("500 Internal Server Error", TransientError),
        ("connection closed before message completed", TransientError),
    ],
)
def test_a_store_that_refuses_is_a_mistake_and_one_that_is_away_is_waited_for(
    said: str, meaning: type[Exception]
) -> None:
    assert type(judged(f"s3://b: {said}", OSError(said))) is meaning


def test_pythons_own_errors_are_told_apart_by_the_package_that_they_come_from() -> None:
    def caught(value: object) -> BaseException:
        try:
            int(value)  # type: ignore[call-overload]
        except (TypeError, ValueError) as error:
            return error
        raise AssertionError("nothing was raised")

    assert not comes_from(caught("x"), {"botocore"})
    assert comes_from(caught("x"), {"tests"})
