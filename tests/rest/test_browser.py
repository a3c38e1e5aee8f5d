"""The worker's page in a real Chromium, as a person uses it: a worker with 20 connectors, of which
three have failed.

It needs the packages playwright and axe-playwright-python, which ``make test`` installs, and a
Chromium of the system: no browser is downloaded. ``SEMEL_SCREENSHOTS`` names a folder for pictures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from semel.cli.ui import Relay
from semel.cli.worker_client import client
from semel.config import read
from semel.config.worker import WorkerConfig
from semel.driver.runtime import Runtime
from semel.kafka.clients import worker_client
from semel.kafka.cluster import Cluster
from semel.worker.alone import StandaloneHerder
from semel.worker.rest.listening import relaying, serving
from semel_lab.embedded import Kafka, Postgres
from semel_lab.embedded.connect import ConnectWorker
from semel_lab.embedded.process import LOOPBACK
from tests.conftest import Produce
from tests.engine.harness import LocalSpark, records, wait_until
from tests.patience import PATIENCE
from tests.sinks.target import Target

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright",
    reason="axe is not installed: pip install axe-playwright-python",
)
expect = playwright.expect

_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
SCREENSHOTS = os.environ.get("SEMEL_SCREENSHOTS", "")
WAITS = float(os.environ.get("SEMEL_WAITS", "120000"))
FAILED = ("orders-eu", "orders-us", "returns")
OTHERS = tuple(f"audit-log-{n:02}" for n in range(17))
HOSTILE = "<img src=x onerror=alert(1)>"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium"),
]


@dataclass
class Shop:
    """A worker, and the stores of its connectors."""

    url: str
    kafka: Kafka
    database: str
    api: httpx.Client

    def state(self, name: str) -> str:
        found = self.api.get(f"/connectors/{name}/status").json()
        return " ".join([found["connector"]["state"], *(t["state"] for t in found["tasks"])])

    def sink(self, name: str, topic: str, **keys: str) -> dict[str, str]:
        return {
            "name": name,
            "connector.class": "postgresql",
            "topics": topic,
            "connection.url": self.database,
            "value.converter.schemas.enable": "false",
            "retry.backoff.ms": "200",
            "errors.deadletterqueue.topic.replication.factor": "1",
            **{key.replace("_", "."): value for key, value in keys.items()},
        }

    def create(self, config: dict[str, str]) -> None:
        answer = self.api.post("/connectors", json={"name": config["name"], "config": config})
        assert answer.is_success, answer.text


@pytest.fixture(scope="module")
def shop(
    kafka: Kafka, postgres: Postgres, produce: Produce, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    spark: Any = LocalSpark()
    raw = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "listeners": f"http://{LOOPBACK}:0",
        "semel.rest.authentication": "none",
    }
    config = read(WorkerConfig, raw)
    database = postgres.create_database("shop")
    with ExitStack() as ends:
        ends.callback(postgres.drop_database, "shop")
        runtime = ends.enter_context(Runtime(spark))
        herder = StandaloneHerder(runtime, config)
        cluster = Cluster(worker_client(config))
        server = ends.enter_context(serving(herder, config, cluster, runtime))
        url = f"http://{LOOPBACK}:{server.ports[0]}"
        api = ends.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))
        made = Shop(url, kafka, database, api)
        kafka.create_topic("log", 1)
        produce("log", records(20))
        for name in FAILED:
            kafka.create_topic(name, 1)
            table = f'CREATE TABLE "{name}" (id bigint, text text CHECK (id < 25))'
            Target(database).execute(table)
            produce(name, records(30))
            made.create(made.sink(name, name))
        for name in OTHERS:
            lines = {"connector.class": "FileStreamSink", "file": str(folder / name)}
            keys = {"name": name, "topics": "log", **lines}
            made.create({**keys, "value.converter.schemas.enable": "false"})
        for name in FAILED:
            wait_until(lambda name=name: "FAILED" in made.state(name))
        for name in OTHERS:
            wait_until(lambda name=name: made.state(name) == "RUNNING RUNNING")
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(shop: Shop, browser: Any) -> Iterator[Any]:
    """A page, which has shown no dialog and met no error at its end."""
    with opened(browser, shop.url) as made:
        yield made


class opened:
    """A window of a person."""

    def __init__(self, browser: Any, url: str, **settings: Any) -> None:
        size = {"width": 1280, "height": 900}
        self.context = browser.new_context(base_url=url, **{"viewport": size, **settings})
        self.context.set_default_timeout(WAITS)
        expect.set_options(timeout=WAITS)
        self.wrong: list[str] = []

    def __enter__(self) -> Any:
        made = self.context.new_page()
        made.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        made.on("pageerror", lambda error: self.wrong.append(str(error)))
        made.on("console", lambda m: self.wrong.append(m.text) if m.type == "error" else None)
        return made

    def __exit__(self, failed: object, *_: object) -> None:
        self.context.close()
        # A refused form is an answer with status 400, which the console shows as well.
        wrong = [text for text in self.wrong if "Failed to load resource" not in text]
        assert failed or not wrong, wrong


def picture(page: Any, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


def names(page: Any) -> list[str]:
    found = page.get_by_role("region", name="Connectors").locator("tbody th a").all_inner_texts()
    return list(found)


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


# What is red


def test_what_has_failed_comes_first_among_20_connectors(shop: Shop, page: Any) -> None:
    page.goto("/ui")
    expect(page.get_by_role("status")).to_contain_text("20 of 20 connectors, 3 with an error")
    assert sorted(names(page)[:3]) == sorted(FAILED)
    picture(page, "ui-table")


def test_the_table_is_searched_filtered_and_sorted_and_its_address_keeps_that(page: Any) -> None:
    page.goto("/ui")
    page.get_by_label("Search").fill("orders")
    button(page, "Show").click()
    expect(page.get_by_role("status")).to_contain_text("2 of 20")
    assert names(page) == ["orders-eu", "orders-us"]
    page.get_by_label("Search").fill("")
    page.get_by_label("State").select_option("FAILED")
    button(page, "Show").click()
    expect(page.get_by_role("status")).to_contain_text("3 of 20")
    page.get_by_role("link", name="Connector", exact=True).click()
    page.get_by_role("link", name="Connector", exact=True).click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Connector")
    assert names(page) == ["returns", "orders-us", "orders-eu"]
    page.reload()
    assert names(page) == ["returns", "orders-us", "orders-eu"]


def test_a_keyboard_reaches_everything(page: Any) -> None:
    page.goto("/ui")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    link = page.get_by_role("link", name="orders-eu")
    for _ in range(60):
        page.keyboard.press("Tab")
        if link.evaluate("each => each === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("orders-eu")


# Why


def test_a_person_finds_out_why_a_connector_has_failed(page: Any) -> None:
    page.goto("/ui")
    page.get_by_role("link", name="orders-eu").click()
    trace = page.locator("pre").first
    expect(trace).to_contain_text("check constraint")
    expect(page.get_by_text("exactly-once").first).to_be_visible()
    picture(page, "ui-connector")
    page.get_by_role("link", name="lines of task 0").click()
    expect(page.get_by_role("heading", name="Log of task 0")).to_be_visible()
    page.get_by_role("link", name="Configuration").click()
    row = page.get_by_role("row").filter(has=page.get_by_text("topics", exact=True))
    expect(row).to_contain_text("this connector")
    page.get_by_role("link", name="Positions").click()
    expect(page.get_by_role("cell", name="25", exact=True)).to_be_visible()
    expect(page.get_by_role("cell", name="30", exact=True)).to_be_visible()


# Put it right


def test_a_restart_shows_that_it_helped_once_the_cause_is_gone(shop: Shop, page: Any) -> None:
    page.goto("/ui/connector?name=orders-us")
    button(page, "Restart what has failed").click()
    status = page.get_by_role("status")
    expect(status).to_contain_text("What had failed has been told to restart.")
    wait_until(lambda: "FAILED" in shop.state("orders-us"))
    expect(button(page, "Restart what has failed")).to_be_visible()
    Target(shop.database).execute('ALTER TABLE "orders-us" DROP CONSTRAINT "orders-us_id_check"')
    button(page, "Restart what has failed").click()
    wait_until(lambda: shop.state("orders-us") == "RUNNING RUNNING")
    expect(page.locator("h1 .badge")).to_have_text("RUNNING")
    expect(button(page, "Restart what has failed")).to_have_count(0)
    page.get_by_role("link", name="Positions").click()
    wait_until(lambda: len(Target(shop.database).query('SELECT id FROM "orders-us"')) == 30)


def test_a_connector_is_paused_resumed_stopped_and_deleted(shop: Shop, page: Any) -> None:
    name = OTHERS[-1]
    config = shop.api.get(f"/connectors/{name}/config").json()
    page.goto(f"/ui/connector?name={name}")
    for title, state in (("Pause", "PAUSED"), ("Resume", "RUNNING"), ("Stop", "STOPPED")):
        button(page, title).click()
        expect(page.get_by_role("status")).to_contain_text(f"Now it is {state}")
        expect(page.locator("h1 .badge")).to_have_text(state)
    page.get_by_text("Delete…").click()
    page.get_by_role("checkbox").check()
    button(page, "Delete the connector").click()
    expect(page.get_by_role("heading", name="Connectors")).to_be_visible()
    assert name not in shop.api.get("/connectors").json()
    page.goto("/ui/new?plugin=postgresql&view=json")
    page.get_by_label("Configuration").fill(json.dumps(config))
    button(page, "Check").click()
    button(page, "Create").click()
    expect(page.get_by_role("status")).to_contain_text("It has been created.")


def test_a_configuration_is_edited_with_all_mistakes_at_once_and_a_difference(
    shop: Shop, page: Any
) -> None:
    page.goto(f"/ui/edit?name={OTHERS[0]}")
    page.get_by_label("More keys", exact=False).fill("errors.tolerance=some\ntasks.max=many")
    button(page, "Check").click()
    expect(page.get_by_role("alert")).to_contain_text("2 mistakes")
    page.goto(f"/ui/edit?name={OTHERS[0]}")
    page.get_by_label("More keys", exact=False).fill("errors.tolerance=all")
    button(page, "Check").click()
    changes = page.get_by_role("region", name="Changes")
    expect(changes).to_contain_text("errors.tolerance")
    button(page, "Apply").click()
    expect(page.get_by_role("status")).to_contain_text("Its new configuration has been applied.")
    config = shop.api.get(f"/connectors/{OTHERS[0]}/config").json()
    assert config["errors.tolerance"] == "all"


def test_offsets_are_set_once_their_meaning_was_seen(shop: Shop, page: Any) -> None:
    page.goto("/ui/connector?name=returns")
    button(page, "Stop").click()
    expect(page.locator("h1 .badge")).to_have_text("STOPPED")
    page.get_by_role("link", name="Positions").click()
    page.get_by_label("New offset of returns-0").fill("26")
    button(page, "See what it means").click()
    expect(page.get_by_role("status")).to_contain_text("1 offsets are left out")
    button(page, "Set these offsets").click()
    expect(page.get_by_role("status")).to_contain_text("Its offsets have been changed.")
    found = shop.api.get("/connectors/returns/offsets").json()["offsets"]
    assert found[0]["offset"] == {"kafka_offset": 26}
    page.get_by_role("link", name="Positions").click()
    page.get_by_label("New offset of returns-0").fill("25")
    button(page, "See what it means").click()
    button(page, "Set these offsets").click()
    page.goto("/ui/connector?name=returns")
    button(page, "Resume").click()
    wait_until(lambda: "FAILED" in shop.state("returns"))


@pytest.fixture(params=["table", "topic"])
def letters(request: pytest.FixtureRequest, shop: Shop, produce: Produce) -> str:
    """A connector with three dead letters. The first and the last are good now."""
    kind = request.param
    name = f"letters-{kind}-{uuid4().hex[:6]}"
    shop.kafka.create_topic(name, 1)
    target = Target(shop.database)
    target.execute(f'CREATE TABLE "{name}" (id bigint, text text CHECK (id < 80))')
    values = [b'{"id": 90, "text": "a"}', HOSTILE.encode(), b'{"id": 91, "text": "b"}']
    produce(name, [*records(3), *values], headers=[None, None, None, *[[("who", b"ada")]] * 3])
    where = {
        "table": {"errors.deadletterqueue.table": f"{kind}_dead"},
        "topic": {"errors.deadletterqueue.topic.name": f"{name}-dead"},
    }[kind]
    shop.create({**shop.sink(name, name), "errors.tolerance": "all", **where})
    api = f"/ui/letters?name={name}"
    wait_until(lambda: shop.api.get(api).text.count('class="letter"') >= 3)
    target.execute(f'ALTER TABLE "{name}" DROP CONSTRAINT "{name}_id_check"')
    return name


def test_dead_letters_are_browsed_and_sent_again_one_by_one_and_all(
    letters: str, shop: Shop, page: Any
) -> None:
    page.goto("/ui")
    page.get_by_role("link", name=letters).click()
    page.get_by_role("link", name="Dead letters").click()
    articles = page.get_by_role("article")
    expect(articles.nth(2)).to_be_visible()  # a topic may have a letter twice
    bad = articles.filter(has_text=HOSTILE).first
    expect(bad).to_contain_text("VALUE_CONVERTER")
    expect(bad).to_contain_text("ada")
    picture(page, "ui-letters")
    button(page, f"Send {letters}-0@5 again").first.click()
    expect(page.get_by_role("status")).to_contain_text("1 record has been sent again.")
    rows = f'SELECT id FROM "{letters}" WHERE id > 80 ORDER BY id'
    wait_until(lambda: Target(shop.database).values(rows) == [91])
    page.get_by_text("Send all of them again…").click()
    page.get_by_role("checkbox").check()
    button(page, "Send all of them again").click()
    expect(page.get_by_role("status")).to_contain_text("2 records have been sent again.")
    wait_until(lambda: Target(shop.database).values(rows) == [90, 91])
    shop.api.delete(f"/connectors/{letters}").raise_for_status()


def test_an_audit_is_started_and_watched_until_its_verdict(page: Any) -> None:
    page.goto(f"/ui/audit?name={OTHERS[1]}")
    button(page, "Start an audit").click()
    # The script puts the verdict there: nobody loads the page again.
    expect(page.locator(".notice.good")).to_contain_text("The guarantee holds.")


# A new connector


def test_a_connector_is_filled_in_tried_and_created(shop: Shop, page: Any) -> None:
    page.goto("/ui")
    page.get_by_role("link", name="New connector").click()
    page.get_by_role("link", name="postgresql", exact=True).click()
    config = shop.sink("copy", "orders-eu")
    expect(page.get_by_text("Unique name", exact=False).first).to_be_visible()
    for key in ("name", "topics", "connection.url"):
        page.locator(f'[name="key.{key}"]').fill(config.pop(key))
    config |= {"bootstrap.servers": shop.kafka.bootstrap_servers, "auto.create": "true"}
    config |= {"table.name.format": "copy"}
    config.pop("connector.class")
    more = "\n".join(f"{key}={value}" for key, value in config.items())
    page.get_by_label("More keys", exact=False).fill(more)
    button(page, "Check, and show the first records").click()
    table = page.get_by_role("region", name="First records to orders-eu")
    expect(table.get_by_role("row")).to_have_count(21)
    expect(table).to_contain_text("text 7")
    expect(table.get_by_role("columnheader").nth(1)).to_contain_text("id int64")
    picture(page, "ui-new")
    assert "copy" not in shop.api.get("/connectors").json()
    button(page, "Create").click()
    expect(page.get_by_role("status")).to_contain_text("It has been created.")
    there = "SELECT 1 FROM pg_tables WHERE tablename = 'copy'"
    wait_until(lambda: Target(shop.database).values(there) == [1])
    wait_until(lambda: len(Target(shop.database).query("SELECT * FROM copy")) == 30)
    shop.api.delete("/connectors/copy").raise_for_status()


# Plain Kafka Connect


def test_a_person_looks_after_connectors_of_plain_kafka_connect(
    shop: Shop, browser: Any, produce: Produce, tmp_path: Path
) -> None:
    shop.kafka.create_topic("plain", 1)
    produce("plain", records(5))
    written = tmp_path / "lines"
    text = "org.apache.kafka.connect.storage.StringConverter"
    sink = "org.apache.kafka.connect.file.FileStreamSinkConnector"
    config = {
        **{"name": "plain", "connector.class": sink, "topics": "plain", "tasks.max": "1"},
        **{"file": str(written), "value.converter": text, "key.converter": text},
        "consumer.override.auto.offset.reset": "earliest",
    }
    raw = {"listeners": f"http://{LOOPBACK}:0", "semel.rest.authentication": "none"}
    worker = read(WorkerConfig, raw)

    def lines() -> int:
        return written.read_text().count("\n") if written.exists() else 0

    with ExitStack() as ends:
        servers = shop.kafka.bootstrap_servers
        connect = ConnectWorker(tmp_path / "connect", servers, plugin=None)
        ends.enter_context(connect)
        there = client(f"http://{LOOPBACK}:{connect.port}")
        server = ends.enter_context(relaying(Relay(worker, there), worker))
        page = ends.enter_context(opened(browser, f"http://{LOOPBACK}:{server.ports[0]}"))
        badge = page.locator("h1 .badge")

        page.goto("/ui")
        expect(page.get_by_text("This is plain Kafka Connect.")).to_be_visible()
        page.get_by_role("link", name="New connector").click()
        expect(page.get_by_role("link", name=sink)).to_be_visible()
        page.goto(f"/ui/new?plugin={sink}&view=json")
        page.get_by_label("Configuration").fill(json.dumps({**config, "tasks.max": "many"}))
        button(page, "Check").click()
        expect(page.get_by_role("alert")).to_contain_text("Invalid value many")
        page.get_by_label("Configuration").fill(json.dumps(config))
        button(page, "Check").click()
        button(page, "Create").click()
        expect(badge).to_have_text("RUNNING")
        wait_until(lambda: lines() == 5)

        page.get_by_role("link", name="Edit").click()
        page.locator('[name="key.tasks.max"]').fill("2")
        button(page, "Check").click()
        expect(page.get_by_role("region", name="Changes")).to_contain_text("tasks.max")
        button(page, "Apply").click()
        expect(page.get_by_role("link", name="Dead letters")).to_have_count(0)
        button(page, "Restart with all tasks").click()
        expect(page.get_by_role("status")).to_contain_text("have been told to restart.")
        for title, state in (("Pause", "PAUSED"), ("Resume", "RUNNING"), ("Stop", "STOPPED")):
            button(page, title).click()
            expect(badge).to_have_text(state)

        page.get_by_role("link", name="Positions").click()
        page.get_by_label("New offset of plain-0").fill("2")
        button(page, "See what it means").click()
        expect(page.get_by_role("status")).to_contain_text("3 offsets are read again")
        button(page, "Set these offsets").click()
        expect(page.get_by_role("status")).to_contain_text("Its offsets have been changed.")
        button(page, "Resume").click()
        wait_until(lambda: lines() == 8)

        page.get_by_text("Delete…").click()
        page.get_by_role("checkbox").check()
        button(page, "Delete the connector").click()
        expect(page.get_by_text("There is no connector yet.")).to_be_visible()
        for path in ("/ui", "/ui/new"):
            page.goto(path)
            assert not axe.Axe().run(page).response["violations"]


# For everybody

PAGES = {
    "table": "/ui",
    "connector": "/ui/connector?name=orders-eu",
    "log": "/ui/connector?name=orders-eu&log=all",
    "config": "/ui/config?name=orders-eu",
    "positions": "/ui/positions?name=orders-eu",
    "letters": "/ui/letters?name=orders-eu",
    "audit": "/ui/audit?name=orders-eu",
    "edit": "/ui/edit?name=orders-eu",
    "json": "/ui/edit?name=orders-eu&view=json",
    "plugins": "/ui/new",
    "new": "/ui/new?plugin=postgresql",
    "error": "/ui/connector?name=none",
}


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_no_rule_of_accessibility_is_broken(
    shop: Shop, browser: Any, width: int, colours: str
) -> None:
    size = {"width": width, "height": 800}
    found = []
    with opened(browser, shop.url, viewport=size, color_scheme=colours) as page:
        for name, path in PAGES.items():
            page.goto(path)
            for violation in axe.Axe().run(page).response["violations"]:
                nodes = [node["html"] for node in violation["nodes"]]
                found.append(f"{name}: {violation['id']}: {nodes[:3]}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                found.append(f"{name}: {wide} pixels wide")
    assert not found, "\n".join(found)


def test_what_answers_forms_breaks_no_rule_of_accessibility(shop: Shop, browser: Any) -> None:
    name = OTHERS[6]
    size, found = {"width": 360, "height": 800}, []

    def look(what: str) -> None:
        for violation in axe.Axe().run(page).response["violations"]:
            nodes = [node["html"] for node in violation["nodes"]]
            found.append(f"{what}: {violation['id']}: {nodes[:3]}")
        if page.evaluate("document.documentElement.scrollWidth") > 360:
            found.append(f"{what} is too wide")

    with opened(browser, shop.url, viewport=size) as page:
        page.goto(f"/ui/edit?name={name}")
        page.get_by_label("More keys", exact=False).fill("errors.tolerance=some\ntasks.max=many")
        button(page, "Check").click()
        expect(page.get_by_role("alert")).to_contain_text("2 mistakes")
        look("mistakes")
        page.goto(f"/ui/edit?name={name}")
        page.get_by_label("More keys", exact=False).fill("errors.tolerance=all")
        button(page, "Check").click()
        expect(page.get_by_role("region", name="Changes")).to_be_visible()
        look("a difference")
        page.goto(f"/ui/connector?name={name}")
        page.get_by_text("Delete…").click()
        look("a question")
        page.goto(f"/ui/connector?name={name}")
        button(page, "Stop").click()
        expect(page.get_by_role("status")).to_contain_text("Now it is STOPPED")
        look("an outcome")
        page.get_by_role("link", name="Positions").click()
        look("positions to edit")
        page.get_by_label("New offset of log-0").fill("1")
        button(page, "See what it means").click()
        expect(page.get_by_role("status")).to_contain_text("are read again")
        look("a preview")
        page.goto(f"/ui/connector?name={name}")
        button(page, "Resume").click()
        page.goto(f"/ui/audit?name={name}")
        button(page, "Start an audit").click()
        expect(page.locator(".notice.good")).to_be_visible()
        look("a verdict")
    assert not found, "\n".join(found)


def test_letters_and_first_records_break_no_rule_of_accessibility(
    letters: str, shop: Shop, browser: Any
) -> None:
    size = {"width": 360, "height": 800}
    with opened(browser, shop.url, viewport=size, color_scheme="dark") as page:
        page.goto(f"/ui/letters?name={letters}")
        page.get_by_text("Send all of them again…").click()
        assert not axe.Axe().run(page).response["violations"]
        page.goto(f"/ui/edit?name={letters}")
        button(page, "Check, and show the first records").click()
        expect(page.get_by_role("heading", name="The first records")).to_be_visible()
        assert not axe.Axe().run(page).response["violations"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    shop.api.delete(f"/connectors/{letters}").raise_for_status()


def test_times_are_in_the_readers_zone(shop: Shop, browser: Any) -> None:
    with opened(browser, shop.url, timezone_id="Asia/Kolkata", locale="en-GB") as page:
        page.goto("/ui/connector?name=orders-eu")
        time = page.locator("ol.log time").first
        expect(time).to_have_attribute("title", re.compile("UTC"))
        utc = time.get_attribute("datetime")
        shown = time.evaluate("each => new Date(each.dateTime).getMinutes()")
        assert shown == (int(utc[14:16]) + 30) % 60


def test_everything_works_without_a_script(shop: Shop, browser: Any) -> None:
    with opened(browser, shop.url, java_script_enabled=False) as page:
        page.goto("/ui")
        page.get_by_label("Search").fill(OTHERS[2])
        button(page, "Show").click()
        page.get_by_role("link", name=OTHERS[2]).click()
        button(page, "Pause").click()
        expect(page.get_by_role("status")).to_contain_text("Now it is PAUSED")
        expect(page.locator("time").first).to_contain_text("UTC")
        button(page, "Resume").click()
        expect(page.get_by_role("status")).to_contain_text("Now it is RUNNING")


def test_a_live_page_keeps_what_a_reader_has_opened_and_focused(shop: Shop, page: Any) -> None:
    name = OTHERS[3]
    page.goto(f"/ui/connector?name={name}&log=all")
    log = page.get_by_role("link", name="lines of task 0")
    log.focus()
    shop.api.put(f"/connectors/{name}/pause").raise_for_status()
    expect(page.locator("h1 .badge")).to_have_text("PAUSED")  # by the script
    expect(log).to_be_focused()
    shop.api.put(f"/connectors/{name}/resume").raise_for_status()


def test_a_keyboard_stays_on_its_button_when_another_one_comes_before_it(
    shop: Shop, page: Any
) -> None:
    name = OTHERS[5]
    page.goto(f"/ui/connector?name={name}")
    restart = button(page, "Restart with all tasks")
    restart.focus()
    there = page.get_by_role("group", name="Put it right")
    first = there.get_by_role("button").first
    first.evaluate("each => each.closest('form').remove()")  # as if it was not needed yet
    expect(there.get_by_role("button")).to_have_count(4)  # by the script
    expect(restart).to_be_focused()


def test_an_opened_trace_stays_open_while_lines_come(shop: Shop, page: Any) -> None:
    page.goto("/ui/connector?name=orders-eu&log=all")
    page.evaluate(
        """() => {
          const list = document.querySelector("ol.log"), line = list.firstElementChild;
          line.insertAdjacentHTML("beforeend", "<details><summary>Trace</summary></details>");
          document.querySelector("ol.log summary").click();
        }"""
    )
    part = page.content()
    page.route("**/ui/connector?*part=1*", lambda route: route.fulfill(body=_with_a_line(part)))
    expect(page.locator("ol.log li").first).to_have_text("a new line")
    expect(page.locator("ol.log details[open]")).to_have_count(1)


def _with_a_line(content: str) -> str:
    closed = content.replace('<details open="">', "<details>")
    return closed.replace('<ol class="log">', '<ol class="log"><li>a new line</li>')


def test_a_page_that_is_out_of_date_says_so(page: Any) -> None:
    page.goto("/ui")
    stale = page.get_by_text("This is out of date")
    expect(stale).to_be_hidden()
    page.route("**/ui?*part=1*", lambda route: route.abort())
    expect(stale).to_be_visible()
    page.unroute("**/ui?*part=1*")
    expect(stale).to_be_hidden()


def test_every_number_can_be_copied(shop: Shop, page: Any) -> None:
    page.goto("/ui")
    numbers = page.get_by_role("region", name="Connectors").locator("tbody td.n")
    for at in range(numbers.count()):
        number = numbers.nth(at)
        number.click(click_count=3)
        copied = page.evaluate("() => document.getSelection().toString().trim()")
        assert copied == number.inner_text().strip()
        page.evaluate("() => document.getSelection().removeAllRanges()")


# What is shown is from outside


def test_a_hostile_name_and_configuration_run_no_script(shop: Shop, page: Any) -> None:
    config = {**shop.sink(HOSTILE, "log"), "transforms": "", "errors.tolerance": HOSTILE}
    page.goto("/ui/new?plugin=postgresql&view=json")
    page.get_by_label("Configuration").fill(json.dumps(config))
    button(page, "Check").click()
    expect(page.get_by_role("alert")).to_contain_text(HOSTILE)
    config["errors.tolerance"] = "all"
    page.get_by_label("Configuration").fill(json.dumps(config))
    button(page, "Check, and show the first records").click()
    button(page, "Create").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(HOSTILE)
    for tab in ("Configuration", "Positions", "Dead letters", "Audit", "Edit"):
        page.get_by_role("navigation", name="This connector").get_by_role("link", name=tab).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(HOSTILE)
    page.goto("/ui")
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.get_by_role("link", name=HOSTILE).click()
    page.get_by_text("Delete…").click()
    page.get_by_role("checkbox").check()
    button(page, "Delete the connector").click()
    expect(page.get_by_role("link", name=HOSTILE)).to_have_count(0)


def test_a_page_of_another_origin_can_change_nothing(shop: Shop, page: Any) -> None:
    other = shop.url.replace("127.0.0.1", "localhost")
    page.route(f"{other}/evil", lambda route: route.fulfill(body=_EVIL, content_type="text/html"))
    page.goto(f"{other}/evil")
    target = f"{shop.url}/ui/connector?name={OTHERS[4]}"
    page.evaluate("url => { document.forms[0].action = url }", target)
    page.locator("button").click()
    expect(page.locator("body")).to_contain_text("403")
    assert shop.state(OTHERS[4]) == "RUNNING RUNNING"


_EVIL = """<form method="post"><input name="do" value="stop"><button>Win</button></form>"""
