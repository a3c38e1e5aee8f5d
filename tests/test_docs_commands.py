"""Every block of README and docs/ is checked as far as that goes without services: shells parse,
commands and what they name exist, and configurations have keys that something reads.

``tests/test_docs_shell.py``, ``tests/test_quickstart.py`` and ``tests/test_docs_examples.py`` run
what can be run. A program that no test runs is in ``OUTSIDE``, with the reason.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.__main__ import Suite
from semel.cli.commands import app
from semel.cli.rest import PASSED_ON as TO_CLIENTS
from semel.cli.worker import IGNORED, PASSED_ON
from semel.config import check_keys, read
from semel.config.proxy import ProxyConfig
from semel.config.worker import ClusterConfig
from semel.proxy.app import Proxy, application
from semel.proxy.formats import Formats
from semel.proxy.kafka import Kafka as RestKafka
from tests.newcomer import blocks
from tests.processes import run_to_end
from tests.test_docs import PAGES, ROOT, named

LANGUAGES = {"", "bash", "json", "properties", "python", "sql", "text", "toml", "yaml"}
"""Without a language, a block is for a shell. ``text`` is what is neither code nor a command."""
OUTSIDE = {
    "apt-get": "installs packages of the system",
    "cp": "writes to the system",
    "docker": "needs a container engine; tests/test_image.py does what the Dockerfile says",
    "install": "writes to the system",
    "journalctl": "needs systemd",
    "kafka-acls.sh": "needs Kafka's distribution, and brokers with an authorizer",
    "kubectl": "needs a Kubernetes cluster",
    "systemctl": "needs systemd",
    "useradd": "writes to the system",
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text()


def shells(page: Path) -> list[str]:
    return [block for language in ("", "bash") for block in blocks(page.read_text(), language)]


def commands(shell: str) -> Iterator[list[str]]:
    """The words of each simple command of a shell block, without what precedes its name."""
    lines = re.sub(r"(?m)(^|\s+)#.*$", "", re.sub(r"\\\n\s*", " ", shell))
    lexer = shlex.shlex(lines, posix=True, punctuation_chars=";|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for token in [*lexer, ";"]:
        if token.strip(";|&\n"):
            words.append(token)
            continue
        while words and re.match(r"\w+=", words[0]):  # variables of its environment
            words.pop(0)
        if words:
            yield words
        words = []


def check(words: list[str]) -> None:
    """A command exists, and so does what it names."""
    program, *rest = words
    program = Path(program).name if "/" in program else program
    options = [word for word in rest if word.startswith("-")]
    match program:
        case "semel":
            semel(rest)
        case "make":
            for word in rest:
                variable, assigned, _ = word.partition("=")
                known = rf"^{variable} [?:]?=" if assigned else rf"^{word}:"
                assert re.search(known, MAKEFILE, re.M), words
        case "pip":
            for extras in re.findall(r"\[([\w,]+)\]", " ".join(rest)):
                assert EXTRAS.keys() >= set(extras.split(",")), words
            paths = [w for w in rest[1:] if "/" in w and not w.startswith("dist/")]
            assert all((ROOT / path).exists() for path in paths), words
        case "python" | "python3":
            assert options[0] == "-m", words
            assert rest[1] in ("venv", "pytest", "benchmarks"), words
            assert rest[1] != "benchmarks" or rest[2] in set(Suite), words
        case "pytest":
            assert all((ROOT / w).exists() for w in rest if w.startswith("tests/")), words
        case "curl":
            (url,) = [w for w in rest if re.match(r"\w+:\d+/|\$v3(/|$)", w)]
            url = url.replace("$v3", "x/v3/clusters/x")
            path = "/" + url.partition("/")[2].partition("?")[0]
            assert any(re.fullmatch(each, path) for each in [*routes(), *proxy_routes()]), words
        case "export" | "." | "cd" | "echo" | "jq" | "mv":
            pass
        case other:
            assert other in OUTSIDE, f"{words}: say in OUTSIDE why no test runs it"


def semel(arguments: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    words = list(arguments)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        command = command.get_command(None, words.pop(0))
        assert command is not None, arguments
    known = {o for parameter in command.params for o in parameter.opts} | {"--help"}
    assert known.issuperset(a for a in words if a.startswith("--")), arguments


def routes() -> list[str]:
    """The paths of the REST API, as patterns."""
    declared = "".join(file.read_text() for file in (ROOT / "src/semel/worker/rest").glob("*.py"))
    paths = re.findall(r'@app\.\w+\(f?"([^"]*)"', declared)
    insight = "/semel/connectors/{name}"
    return [re.sub(r"\{+\w+\}+", "[^/]+", path.replace("{base}", insight)) for path in paths]


@cache
def proxy_routes() -> list[str]:
    """The paths of the REST proxy, which connects to nothing for that."""
    config = read(ProxyConfig, {"bootstrap.servers": "localhost:1"})
    kafka = RestKafka(config)
    try:
        paths = application(Proxy(kafka, Formats(config))).openapi()["paths"]
    finally:
        kafka.close()
    return [re.sub(r"\{\w+\}", "[^/]+", path) for path in [*paths, "/openapi.json"]]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_blocks_of_a_page_have_a_language_that_is_checked(page: Path) -> None:
    found = re.findall(r"^ *```(\w*)\n.*?^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert set(found) <= LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_shell_can_parse_the_commands_of_a_page(page: Path) -> None:
    for shell in shells(page):
        parsed = run_to_end(["bash", "-n"], input=shell)
        assert not parsed.stderr, shell


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_commands_of_a_page_name_what_there_is(page: Path) -> None:
    for shell in shells(page):
        for words in commands(shell):
            check(words)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_data_that_a_page_shows_is_well_formed(page: Path) -> None:
    yaml = pytest.importorskip("yaml")
    text = page.read_text()
    for block in blocks(text, "json"):
        parts_of_a_file = block if block.lstrip().startswith(("{", "[")) else f"{{{block}}}"
        json.loads(parts_of_a_file)
    for block in blocks(text, "toml"):
        tomllib.loads(block)
    for block in blocks(text, "yaml"):
        yaml.safe_load(block)
    for block in blocks(text, "properties"):
        keys = dict(line.split("=", 1) for line in block.splitlines())
        passed_on = (*PASSED_ON, *TO_CLIENTS)
        assert list(check_keys(keys, [ClusterConfig, ProxyConfig], IGNORED, passed_on)) == []
