"""The declared guarantee: kept, or refused with what to set instead."""

from __future__ import annotations

import itertools

import pytest

from semel.config import ConnectorConfig, read
from semel.core.delivery import Delivery, Mechanism, Support, resolve
from semel.core.errors import ConfigError
from semel.sinks.postgresql import PostgresSink

YES = Support(True, "it can")
NO = Support(False, "it cannot; set x=y")
MOST, LEAST, EXACTLY = Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE
TRANSACTIONAL, IDEMPOTENT = Mechanism.TRANSACTIONAL, Mechanism.IDEMPOTENT


def supported(transactional: Support, idempotent: Support) -> dict[Mechanism, Support]:
    return {TRANSACTIONAL: transactional, IDEMPOTENT: idempotent}


@pytest.mark.parametrize(
    ("transactional", "idempotent", "expected"),
    [
        (YES, YES, "exactly-once (transactional)"),
        (YES, NO, "exactly-once (transactional)"),
        (NO, YES, "exactly-once (idempotent)"),
        (NO, NO, "at-least-once"),
    ],
)
def test_the_strongest_guarantee_is_the_default(
    transactional: Support, idempotent: Support, expected: str
) -> None:
    found = resolve(None, None, supported(transactional, idempotent))
    assert str(found) == expected
    if expected == "at-least-once":
        assert "Not exactly-once: transactional: it cannot" in found.why
        assert "set x=y" in found.why


@pytest.mark.parametrize("declared", [MOST, LEAST])
@pytest.mark.parametrize("answers", list(itertools.product([YES, NO], repeat=2)))
def test_weaker_guarantees_are_never_refused(
    declared: Delivery, answers: tuple[Support, Support]
) -> None:
    found = resolve(declared, None, supported(*answers))
    assert (found.delivery, found.mechanism, str(found)) == (declared, None, declared.value)
    assert "a crash in between" in found.why


@pytest.mark.parametrize("declared", [EXACTLY, None])
@pytest.mark.parametrize("mechanism", [TRANSACTIONAL, IDEMPOTENT])
def test_a_named_mechanism_is_kept_or_refused(
    declared: Delivery | None, mechanism: Mechanism
) -> None:
    answers = {m: YES if m is mechanism else NO for m in Mechanism}
    assert resolve(declared, mechanism, answers).mechanism is mechanism
    answers = {m: NO if m is mechanism else YES for m in Mechanism}
    with pytest.raises(ConfigError, match=rf"cannot be kept. {mechanism.value}: .*set x=y"):
        resolve(declared, mechanism, answers)


def test_exactly_once_that_cannot_be_kept_is_refused_with_every_reason() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(EXACTLY, None, supported(NO, Support(False, "no key")))
    assert str(caught.value) == (
        "delivery=exactly-once cannot be kept. transactional: it cannot; set x=y; "
        "idempotent: no key"
    )


@pytest.mark.parametrize("declared", [MOST, LEAST])
@pytest.mark.parametrize("mechanism", [TRANSACTIONAL, IDEMPOTENT])
def test_a_mechanism_belongs_to_exactly_once(declared: Delivery, mechanism: Mechanism) -> None:
    with pytest.raises(ConfigError, match=r"belongs to delivery=exactly-once.*Remove"):
        resolve(declared, mechanism, supported(YES, YES))


# What the PostgreSQL sink answers


def answers(**keys: str) -> dict[Mechanism, Support]:
    raw = {
        "name": "c",
        "connector.class": "postgresql",
        "bootstrap.servers": "h:9092",
        "topics": "t",
        "connection.url": "postgresql://nowhere/d",
        **{k.replace("_", "."): v for k, v in keys.items()},
    }
    return dict(PostgresSink(read(ConnectorConfig, raw)).support())  # reaches no server


@pytest.mark.parametrize("mode", ["insert", "upsert", "update"])
def test_postgresql_always_keeps_a_transaction(mode: str) -> None:
    found = answers(insert_mode=mode, pk_mode="record_key", pk_fields="id")[TRANSACTIONAL]
    assert found.kept
    assert "one PostgreSQL transaction" in found.reason


@pytest.mark.parametrize("mode", ["upsert", "update"])
def test_postgresql_is_idempotent_by_key(mode: str) -> None:
    found = answers(insert_mode=mode, pk_mode="record_key", pk_fields="id")[IDEMPOTENT]
    assert found.kept
    assert f"insert.mode={mode} by key" in found.reason


@pytest.mark.parametrize("keys", [{}, {"insert_mode": "multi"}, {"pk_mode": "kafka"}])
def test_postgresql_inserts_are_not_idempotent(keys: dict[str, str]) -> None:
    found = answers(**keys)[IDEMPOTENT]
    assert not found.kept
    assert "Set insert.mode=upsert and pk.mode" in found.reason
    with pytest.raises(ConfigError, match=r"would insert the rows of a replay twice"):
        resolve(EXACTLY, IDEMPOTENT, answers(**keys))
