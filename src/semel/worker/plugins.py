"""Lists a worker's plugins, and validates configurations key by key."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, TypeVar

from semel import converters, sources, transforms
from semel.config.extras import matches
from semel.config.reading import read
from semel.config.worker import WorkerConfig
from semel.core.errors import ConfigError, Problem, SemelError
from semel.driver.validation import (
    ConfigInfos,
    ConfigKeyInfo,
    declared,
    keys_of,
    located_warnings,
    validate,
)
from semel.sinks import names
from semel.tasks import expendable
from semel.worker.errors import BadRequest, NotFound, RequestError, TooManyRequests

log = logging.getLogger(__name__)

T = TypeVar("T")

VERSION = version("semel")
RequestConfig = Mapping[str, str | None]
"""A configuration as a request has it."""
Answer = dict[str, Any]
Validation = tuple[ConfigInfos, list[dict[str, Any]]]
_WAITS = 20.0
_NULL = "Null value can not be supplied as the configuration value."
_SUFFIX = "Connector"


@dataclass(frozen=True, slots=True)
class ProcessPolicy:
    """What is done in a process of its own, what it may take, and what to look for if it takes
    more."""

    room: threading.Semaphore
    fails: str
    seconds: int
    hint: str
    memory: int = 512 * 1024 * 1024
    patience: float = 60.0


_CANNOT = "The configuration cannot be validated"
_LOOK_FOR = "Look for a very large value, query or pattern in it"
READS = ProcessPolicy(threading.Semaphore(2), _CANNOT, 10, _LOOK_FOR)
"""To validate a configuration: usually it takes milliseconds."""
SETS = replace(READS, room=threading.Semaphore(2))
"""The same for those who set it."""
LOOKS = ProcessPolicy(
    *(threading.Semaphore(2), "The records cannot be read", 20),
    "Records may be very large. Whatever was asked for can be asked for again",
)
"""To look at records."""
_OTHERS = {"transforms": "transformation", "predicates": "predicate"}
"""The other kinds of plugins, with the types that Kafka Connect reports for them."""


def listed(*, connectors_only: bool) -> list[dict[str, str]]:
    """The answer to ``GET /connector-plugins``."""
    plugins = [_plugin(name, "sink") for name in sorted(names())]
    plugins += [_plugin(name, "source") for name in sorted(sources.known())]
    if not connectors_only:
        for kind, type_ in _OTHERS.items():
            plugins += [_plugin(name, type_) for name in sorted(dict(transforms.classes(kind)))]
        plugins += [_plugin(name, "converter") for name in sorted(converters.names())]
    return plugins


def _plugin(name: str, kind: str) -> dict[str, str]:
    return {"class": name, "type": kind, "version": VERSION}


def definitions_of(name: str) -> Sequence[ConfigKeyInfo]:
    """The keys of a connector's class, or of a converter's, a transform's or a predicate's.

    Raises:
        NotFound: there is no such class.
    """
    with _known(name):
        return keys_of(_full(name))


def sections_of(name: str) -> Sequence[type]:
    """The sections that declare the keys of a connector's class.

    Raises:
        NotFound: there is no such class.
    """
    with _known(name):
        return declared(_full(name))[0]


@contextmanager
def _known(name: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise NotFound(f"Unknown plugin {name}.") from None


def apart(what: ProcessPolicy, function: Callable[..., T], *arguments: Any) -> T:
    """What a function answers, in a process that may die of it.

    Raises:
        BadRequest: it has died, took too long, or met an error that nobody has foreseen.
        TooManyRequests: too many others are being answered.
    """
    if not what.room.acquire(timeout=_WAITS):
        raise TooManyRequests(f"{what.fails}: too many others are being answered. Try again later")
    try:
        limits = expendable.Limits(what.memory, what.patience, what.seconds)
        return expendable.call(limits, function, *arguments)
    except (expendable.Died, TimeoutError):
        raise BadRequest(
            f"{what.fails}: the process that did so has died, or took too long. It may use "
            f"{what.memory >> 20} MiB of memory and {what.seconds} s of CPU time. {what.hint}"
        ) from None
    except RequestError:
        raise
    except SemelError as error:
        log.warning("%s: %s", what.fails, error)
        raise BadRequest(f"{what.fails}: {error}") from None
    finally:
        what.room.release()


def rehearse() -> None:
    """Validate some configuration: what that reads and caches is then there in all processes that
    are forked from this one, which makes validating three times as fast."""
    worker = read(WorkerConfig, {"bootstrap.servers": "localhost:9092"})
    checked({"name": "any", "connector.class": "JdbcSinkConnector", "topics": "any"}, worker)


def answer(name: str, config: RequestConfig, worker: WorkerConfig) -> Answer:
    """The answer to ``PUT /connector-plugins/{name}/config/validate``. ``worker`` says what else
    the connector runs with, and what it may not set.

    Raises:
        BadRequest: the configuration belongs to another class, or there is no such class.
    """
    class_name = config.get("connector.class")
    if class_name is not None and not _short(class_name).endswith(_short(name)):
        raise BadRequest(f"Included connector type {class_name} does not match request type {name}")
    try:
        declared(_full(class_name or name))
    except ConfigError as error:
        raise BadRequest(str(error)) from None
    infos, warnings = checked(config, worker, name, resolves=False)
    return asdict(infos) | {"warnings": warnings}


def unrefused(config: RequestConfig, worker: WorkerConfig) -> Answer:
    """What an answer says in addition about a configuration that is not refused: its warnings, if
    there are any.

    Raises:
        BadRequest: names everything that is wrong with it, as Kafka Connect's worker does.
    """
    infos, warnings = checked(config, worker)
    if infos.error_count:
        errors = "\n".join(error for each in infos.configs for error in each.value.errors)
        raise BadRequest(
            "Connector configuration is invalid and contains the following "
            f"{infos.error_count} error(s):\n{errors}\n"
            "You can also find the above list of errors at the endpoint "
            "`/connector-plugins/{connectorType}/config/validate`"
        )
    return {"warnings": warnings} if warnings else {}


def checked(
    config: RequestConfig, worker: WorkerConfig, name: str = "", *, resolves: bool = True
) -> Validation:
    """The keys of a configuration, with their values and what is wrong with them, and warnings.
    ``name`` is the class, if the configuration names none. References are resolved only for those
    who may create a connector."""
    values = {key: value for key, value in config.items() if value is not None}
    nulls = config.keys() - values.keys()
    class_name = values.get("connector.class") or _full(name)
    run = {**worker.inherited(values), "connector.class": class_name}
    known = [*worker.forbidden(values), *(Problem(key, _NULL) for key in sorted(nulls))]
    infos, warnings = validate(run, resolves=resolves and not known, known=known)
    configs = [
        replace(each, value=replace(each.value, value=None)) if each.value.name in nulls else each
        for each in infos.configs
    ]
    return replace(infos, configs=configs), located_warnings(warnings, run)


def _short(name: str) -> str:
    return name.removesuffix(_SUFFIX) or name


def _full(name: str) -> str:
    """The class that a full or a simple name stands for; the name itself if there is none."""
    known = {*names(), *sources.known()}
    return name if name in known else next(iter(matches(name, known, _SUFFIX)), name)
