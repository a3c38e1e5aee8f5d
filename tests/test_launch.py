"""How the JVM of a command is started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from semel.spark import launch
from semel.spark.gateway import OPTIONS

Options = Callable[..., str]


class AtOnce(threading.Thread):
    def start(self) -> None:
        self.run()


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Options:
    """The options of the JVM that a configuration begins."""
    monkeypatch.delenv("SEMEL_SPARK_LOG", raising=False)
    monkeypatch.setattr(launch, "neutral", lambda: True)
    monkeypatch.setattr(launch, "connected", lambda: False)
    monkeypatch.setattr(launch, "spark_archive", lambda: None)
    begun: list[str] = []
    monkeypatch.setattr(
        launch.Jvm, "connect", lambda _jvm, settings, _archive: begun.append(settings[OPTIONS])
    )
    monkeypatch.setattr(launch, "threading", SimpleNamespace(Thread=AtOnce))

    def of(raw: dict[str, str], *, for_any: bool = False) -> str:
        begun.clear()
        assert launch.begin(raw, for_any=for_any) is not None
        return begun[0]

    return of


WITH = "-Dlog4j2.configurationFile="
WITHOUT = "NOP_FallbackServiceProvider"


@pytest.mark.long
def test_log4j_is_left_out_where_nothing_can_be_logged(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WITHOUT in options({})
    assert WITH in options({}, for_any=True), "programs may set the level of its log"
    assert WITH in options({"spark.log.level": "INFO"})
    assert WITH in options({"spark.driver.log.localDir": "/logs"})
    monkeypatch.setenv("SEMEL_SPARK_LOG", "warn")
    assert WITH in options({})
    monkeypatch.delenv("SEMEL_SPARK_LOG")
    monkeypatch.setattr(launch, "neutral", lambda: False)
    assert WITH in options({}), "spark-defaults.conf may set the level"
