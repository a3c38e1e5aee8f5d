"""Workers of one group, in this process, which share their connectors."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import Consumer, Producer

from semel.audit.source import audit_source
from semel.core.errors import ConfigError
from semel.driver.planning import plan_source
from semel.worker.cluster import herder
from semel.worker.cluster.membership import Group, Membership
from semel.worker.cluster.records import configured
from semel.worker.rest.token import VARIABLE
from semel_lab.embedded import Kafka
from semel_lab.embedded.proxy import Proxy
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import assert_nothing_lost_nothing_twice, records, wait_until
from tests.patience import PATIENCE
from tests.rest.members import Inside, Outside, leader_of, offset, owners, state

pytestmark = pytest.mark.integration

Join = Callable[..., Inside]


@pytest.fixture
def keys(kafka: Kafka) -> dict[str, str]:
    """Those of a group of the test's own."""
    group = f"group-{uuid4().hex[:8]}"
    keys = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": group,
        "scheduled.rebalance.max.delay.ms": "0",
    }
    for kind in ("config", "status", "offset"):
        keys |= {
            f"{kind}.storage.topic": f"{group}-{kind}s",
            f"{kind}.storage.replication.factor": "1",
        }
    return keys


@pytest.fixture
def join(keys: dict[str, str], database: str) -> Iterator[Join]:
    """Starts workers of the test's group. They end before the test's ``database`` does."""
    with ExitStack() as ends:

        def start(**given: str) -> Inside:
            more = {name.replace("_", "."): value for name, value in given.items()}
            member = Inside({**keys, **more})
            ends.callback(member.end)
            return member

        yield start


def tasks(api: httpx.Client, name: str) -> list[Any]:
    return list(api.get(f"/connectors/{name}/tasks").json())


def topics(api: httpx.Client, name: str) -> list[str]:
    return list(api.get(f"/connectors/{name}/topics").json()[name]["topics"])


def wait_for(true: Callable[[Any], bool], of: Any) -> None:
    wait_until(lambda: true(of))


@pytest.mark.long
def test_workers_with_different_tokens_forward_requests_to_each_other(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = []
    for token in ("one", "two"):  # as on two machines
        monkeypatch.setenv(VARIABLE, token)
        members.append(join(semel_rest_authentication="token"))
        assert members[-1].api.put("/connectors/none/pause").status_code == 401
        members[-1].api.headers["Authorization"] = f"Bearer {token}"
    for member in members:
        wait_until(lambda api=member.api: api.put("/connectors/none/pause").status_code == 404)
        member.api.headers["Authorization"] = "Bearer none"
        assert member.api.put("/connectors/none/pause").status_code == 401


@pytest.mark.long
def test_workers_share_connectors_and_any_of_them_answers(
    keys: dict[str, str], join: Join, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    sources = [topic(partitions=2) for _ in range(4)]
    for source in sources:
        produce(source, records(100))
    one, two = join(), join()
    configs = [configure(source, {"tasks.max": "2"}) for source in sources]
    names = [config["name"] for config in configs]
    for number, config in enumerate(configs):
        api = (one, two)[number % 2].api
        made = api.post("/connectors", json={"name": config["name"], "config": config})
        assert made.status_code == 201, made.text
    for api in (one.api, two.api):
        wait_for(lambda api: owners(api, names) == {one.id: 2, two.id: 2}, api)
        assert sorted(api.get("/connectors").json()) == sorted(names)
        assert api.get(f"/connectors/{names[0]}/config").json()["topics"] == sources[0]
    for config in configs:
        wait_for(lambda name: offset(two.api, name) == 100, config["name"])
        wait_for(lambda name: len(tasks(one.api, name)) == 2, config["name"])
        wait_for(lambda config: topics(one.api, config["name"]) == [config["topics"]], config)

    leads = (
        f'kafka_connect_worker_rebalance_leader_name{{leader_name="http://{leader_of(keys)}"}} 1'
    )
    for api in (one.api, two.api):
        assert leads in api.get("/metrics").text
        assert "kafka_connect_worker_rebalance_rebalancing 0" in api.get("/metrics").text

    # Whoever is asked, the leader writes, and a connector's own worker acts.
    for api in (one.api, two.api):
        assert api.put(f"/connectors/{names[0]}/pause").status_code == 202
        wait_until(lambda: state(one.api, names[0])[0] == "PAUSED")
        assert api.put(f"/connectors/{names[0]}/resume").status_code == 202
        wait_until(lambda: state(one.api, names[0])[0] == "RUNNING")
        assert api.post(f"/connectors/{names[1]}/restart").status_code == 204
        assert api.post(f"/connectors/{names[1]}/tasks/1/restart").status_code == 204
        everything = api.post(f"/connectors/{names[1]}/restart", params={"includeTasks": True})
        assert everything.status_code == 202
        assert {task["state"] for task in everything.json()["tasks"]} == {"RESTARTING"}
        wrong = api.put("/connectors/none/pause")
        assert (wrong.status_code, wrong.json()["message"]) == (404, "Unknown connector none")

    assert two.api.put(f"/connectors/{names[2]}/stop").status_code == 204
    wait_until(lambda: state(one.api, names[2])[0] == "STOPPED")
    first = {"kafka_topic": sources[2], "kafka_partition": 0}
    moved = {"offsets": [{"partition": first, "offset": None}]}
    for api in (one.api, two.api):  # the first may be refused until the last task has ended
        path = f"/connectors/{names[2]}/offsets"
        wait_for(lambda api, path=path: api.patch(path, json=moved).status_code == 200, api)
    assert one.api.delete(f"/connectors/{names[2]}").status_code == 204
    for api in (one.api, two.api):
        wait_for(lambda api: names[2] not in api.get("/connectors").json(), api)
        wait_for(lambda api: state(api, names[2])[0] == "", api)
    for config in (configs[0], configs[1], configs[3]):
        assert_nothing_lost_nothing_twice(config, range(100))
    audit = f"/semel/connectors/{names[1]}/audit"
    assert one.api.post(audit).status_code == 202
    wait_until(lambda: two.api.get(audit).json()["state"] == "DONE")
    assert one.api.get(audit).json() == two.api.get(audit).json()


@pytest.mark.long
def test_connectors_move_no_more_than_they_must(
    join: Join, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    sources = [topic() for _ in range(4)]
    configs = [configure(source) for source in sources]
    names = [config["name"] for config in configs]
    waits = {"scheduled_rebalance_max_delay_ms": "600000"}
    one, two = join(**waits), join(**waits)
    for config in configs:
        one.api.post("/connectors", json={"name": config["name"], "config": config})
    wait_until(lambda: owners(one.api, names) == {one.id: 2, two.id: 2})

    before = [state(one.api, name) for name in names]
    three = join(**waits)
    wait_until(lambda: sorted(owners(three.api, names).values()) == [1, 1, 2])
    after = [state(three.api, name) for name in names]
    assert sum(x != y for x, y in zip(before, after, strict=True)) == 1

    # A worker that ends in order is waited for: nothing moves while it is away.
    two.end()
    mine = [name for name, (_, worker) in zip(names, after, strict=True) if worker == two.id]
    wait_until(lambda: {state(one.api, name)[0] for name in mine} == {"UNASSIGNED"})
    for source in sources:
        produce(source, records(50))
    again = join(**waits, listeners=f"http://{two.id}")
    wait_until(lambda: [state(again.api, name) for name in names] == after)
    for config in configs:
        wait_for(lambda name: offset(again.api, name) == 50, config["name"])
        assert_nothing_lost_nothing_twice(config, range(50))


def spread(api: httpx.Client, name: str) -> list[tuple[str, str]]:
    """The states of a connector's tasks, and the workers that run them."""
    found = api.get(f"/connectors/{name}/status")
    if found.status_code == 404:
        return []
    return [(task["state"], task["worker_id"]) for task in found.json()["tasks"]]


def workers_of(api: httpx.Client, name: str) -> Counter[str]:
    return Counter(worker for is_in, worker in spread(api, name) if is_in == "RUNNING")


@pytest.mark.long
def test_the_tasks_of_a_sink_spread_over_workers_and_few_of_them_move(
    join: Join, topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic(partitions=4, values=records(100))
    one, two = join(), join()
    config = configure(source, {"tasks.max": "4"})
    name = config["name"]
    made = one.api.post("/connectors", json={"name": name, "config": config})
    assert made.status_code == 201, made.text
    wait_until(lambda: workers_of(two.api, name) == {one.id: 2, two.id: 2})
    wait_until(lambda: offset(two.api, name) == 100)

    before = spread(one.api, name)
    starts = [member.starts(name) for member in (one, two)]
    three = join()
    wait_until(lambda: sorted(workers_of(one.api, name).values()) == [1, 1, 2])
    after = spread(one.api, name)
    assert sum(x != y for x, y in zip(before, after, strict=True)) == 1
    produce(source, records(100, start=100))
    wait_until(lambda: offset(three.api, name) == 200)
    assert [member.starts(name) for member in (one, two)] == starts == [1, 1]

    # Whoever is asked, a task's own worker restarts it.
    [task] = [n for n, (_, worker) in enumerate(after) if worker == three.id]
    assert one.api.post(f"/connectors/{name}/tasks/{task}/restart").status_code == 204
    assert two.api.put(f"/connectors/{name}/pause").status_code == 202
    wait_until(lambda: {of for of, _ in spread(one.api, name)} == {"PAUSED"})
    assert two.api.put(f"/connectors/{name}/resume").status_code == 202
    assert one.api.put(f"/connectors/{name}/stop").status_code == 204
    wait_until(lambda: spread(three.api, name) == [])
    assert one.api.put(f"/connectors/{name}/resume").status_code == 202
    wait_until(lambda: sorted(workers_of(one.api, name).values()) == [1, 1, 2])

    # Fewer tasks, then a worker less.
    fewer = {**config, "tasks.max": "2"}
    assert three.api.put(f"/connectors/{name}/config", json=fewer).status_code == 200
    wait_until(lambda: sorted(workers_of(one.api, name).values()) == [1, 1])
    wait_until(lambda: len(spread(one.api, name)) == 2)
    one.end()
    produce(source, records(100, start=200))
    wait_until(lambda: offset(three.api, name) == 300)
    wait_until(lambda: one.id not in workers_of(three.api, name))
    wait_until(lambda: workers_of(three.api, name).total() == 2)
    assert_nothing_lost_nothing_twice(config, range(300))


@pytest.mark.long
def test_any_worker_says_what_a_spread_connector_waits_for_and_has_its_log(
    join: Join, kafka: Kafka, produce: Produce, configure: Configure, database: str
) -> None:
    source = f"late-{uuid4().hex[:8]}"
    one, two = join(), join()
    with Proxy.before(database) as proxy:
        config = configure(source, {"tasks.max": "2"})
        config["connection.url"] = proxy.url(config["connection.url"])
        name = config["name"]
        assert one.api.put(f"/connectors/{name}/config", json=config).status_code == 201

        def asked(member: Inside) -> Any:
            return member.api.get(f"/semel/connectors/{name}").json()

        def awaited(member: Inside) -> list[str]:
            return [(task["waits"] or {}).get("for") for task in asked(member)["tasks"]]

        def wait_for_both(what: str) -> None:
            for member in (one, two):
                wait_until(
                    lambda member=member: (asked(member).get("waits") or {}).get("for") == what
                )

        wait_for_both("topic")
        kafka.create_topic(source, 2)
        wait_until(lambda: workers_of(two.api, name) == {one.id: 1, two.id: 1})
        produce(source, records(10))
        wait_until(lambda: offset(two.api, name) == 10)
        # A task that waits for its store gives no partition to one that joins the group later.
        for member in (one, two):
            wait_until(lambda member=member: member.partitions(name) == [1])
        proxy.refuse()
        produce(source, records(10, start=10))
        wait_for_both("service")
        for member in (one, two):
            wait_until(lambda member=member: awaited(member) == ["service"] * 2)
            for task in (0, 1):
                logs = member.api.get(f"/semel/connectors/{name}/logs", params={"task": task})
                assert any("; trying again" in line["message"] for line in logs.json()["lines"])
        proxy.accept()
        wait_until(lambda: offset(two.api, name) == 20)


@pytest.mark.long
def test_the_tasks_of_a_source_spread_over_workers_and_few_of_them_move(
    join: Join, topic: MakeTopic
) -> None:
    copied = topic(partitions=2)
    one, two = join(), join()
    name, count = f"made-{uuid4().hex[:8]}", 6000
    config = {
        "name": name,
        "connector.class": "Datagen",
        "kafka.topic": copied,
        "quickstart": "orders",
        "max.interval": "3",
        "iterations": str(count),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "tasks.max": "4",
    }
    made = one.api.post("/connectors", json={"name": name, "config": config})
    assert made.status_code == 201, made.text
    wait_until(lambda: workers_of(two.api, name) == {one.id: 2, two.id: 2})
    starts = [member.starts(name) for member in (one, two)]
    three = join()
    wait_until(lambda: sorted(workers_of(one.api, name).values()) == [1, 1, 2])
    assert [member.starts(name) for member in (one, two)] == starts == [1, 1]

    def leave(member: Inside, others: Sequence[Inside]) -> None:
        member.end()
        wait_until(lambda: workers_of(others[0].api, name).keys() == {o.id for o in others})
        wait_until(lambda: workers_of(others[0].api, name).total() == 4)

    first = next(m for m in (one, two) if m.id == spread(three.api, name)[0][1])
    other = two if first is one else one
    leave(first, [other, three])  # who divides the source for all
    leave(other, [three])

    def offsets() -> list[int]:
        found = three.api.get(f"/connectors/{name}/offsets").json()["offsets"]
        return [each["offset"]["current.iteration"] for each in found]

    wait_until(lambda: sum(offsets()) == 4 * count)
    planned = plan_source(three.config.inherited(config))
    found = audit_source(planned)
    assert (found.records, found.lost, found.duplicated) == (4 * count, 0, 0)


@pytest.mark.long
def test_what_cannot_run_here_fails_with_its_name_and_stays(
    join: Join, topic: MakeTopic, configure: Configure, kafka: Kafka
) -> None:
    member = join()
    strange = {"connector.class": "com.example.StrangeConnector", "topics": "t"}
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    key, value = configured("strange", strange)
    producer.produce(member.config.config_topic, value, key)
    assert producer.flush(PATIENCE) == 0
    wait_until(lambda: state(member.api, "strange")[0] == "FAILED")
    trace = member.api.get("/connectors/strange/status").json()["connector"]["trace"]
    assert "com.example.StrangeConnector" in trace
    assert "Traceback" not in trace

    good = configure(topic())
    member.api.post("/connectors", json={"name": good["name"], "config": good})
    wait_until(lambda: state(member.api, good["name"])[0] == "RUNNING")
    assert member.api.post("/connectors/strange/restart").status_code == 204
    wait_until(lambda: state(member.api, "strange")[0] == "FAILED")
    assert member.api.get("/connectors/strange/config").json() == strange
    repaired = configure(topic(), {"name": "strange"})
    assert member.api.put("/connectors/strange/config", json=repaired).status_code == 200
    wait_until(lambda: state(member.api, "strange")[0] == "RUNNING")


def test_a_worker_stays_out_of_a_group_of_others(join: Join, kafka: Kafka) -> None:
    """A consumer stands for a worker of Kafka Connect: its protocol differs, too."""
    member = join()
    group, topic = member.config.group_id, member.config.config_topic
    member.end()
    other = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    held: list[Any] = []
    other.subscribe([topic], on_assign=lambda _consumer, partitions: held.extend(partitions))
    try:
        wait_until(lambda: other.poll(0.1) is None and bool(held))
        late = join()
        wait_until(lambda: other.poll(0.1) is None and late.worker.failed is not None)
        assert "workers of Kafka Connect, most likely. Stop them all first" in str(
            late.worker.failed
        )
    finally:
        other.close()


def test_requests_that_need_a_leader_fail_while_there_is_none(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = join()
    wait_until(lambda: member.api.get("/health").status_code == 200)
    monkeypatch.setattr(herder, "_LEADER_IN", 0.1)
    monkeypatch.setattr(Membership, "group", Group(frozenset({member.config.url})))
    refused = member.api.post("/connectors", json={"name": "x", "config": {}})
    assert (refused.status_code, refused.json()["error_code"]) == (409, 409)
    assert refused.json()["message"].startswith(
        "Cannot complete request momentarily due to no known leader URL"
    )
    assert member.api.get("/connectors").json() == []


def test_a_topic_that_would_forget_connectors_is_refused(join: Join, topic: MakeTopic) -> None:
    with pytest.raises(ConfigError, match=r"config\.storage\.topic=.* has cleanup\.policy=delete"):
        join(config_storage_topic=topic())
    with pytest.raises(ConfigError, match="has 2 partitions, and must have 1"):
        join(config_storage_topic=topic(2, {"cleanup.policy": "compact"}))


@pytest.fixture
def spawn(keys: dict[str, str], database: str) -> Iterator[Callable[[], Outside]]:
    """Starts workers of the test's group in processes of their own."""
    with ExitStack() as ends:

        def start() -> Outside:
            member = Outside({**keys, "session.timeout.ms": "6000"})
            ends.callback(member.end)
            return member

        yield start


@pytest.mark.parametrize(
    "freezes",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["dies", "freezes, dies and is replaced"],
)
def test_the_work_of_leaders_that_freeze_or_die_goes_to_others(
    freezes: bool,
    spawn: Callable[[], Outside],
    keys: dict[str, str],
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
) -> None:
    members = [spawn() for _ in range(3 if freezes else 2)]
    for member in members:
        member.wait()
    each_one = [1] * len(members)
    sources = [topic(partitions=2) for _ in members]
    configs = [configure(source, {"tasks.max": "2"}) for source in sources]
    names = [config["name"] for config in configs]
    for config in configs:
        made = members[0].api.post("/connectors", json={"name": config["name"], "config": config})
        assert made.status_code == 201, made.text
    wait_until(lambda: sorted(owners(members[0].api, names).values()) == each_one)
    count = 0

    def more() -> None:
        nonlocal count
        for source in sources:
            produce(source, records(100, start=count))
        count += 100

    def arrive(at: httpx.Client) -> None:
        for name in names:
            wait_for(lambda name: offset(at, name) == count, name)

    more()
    wait_until(lambda: leader_of(keys) != "")
    members.sort(key=lambda member: member.id != leader_of(keys))
    left = members[-1]
    if freezes:
        frozen = members.pop(0)
        frozen.send(signal.SIGSTOP)
        more()
        wait_until(lambda: frozen.id not in owners(left.api, names))
        arrive(left.api)
        frozen.send(signal.SIGCONT)
        more()
        wait_until(lambda: sorted(owners(left.api, names).values()) == each_one)
        arrive(frozen.api)

    wait_until(lambda: leader_of(keys) in [member.id for member in members])
    members.sort(key=lambda member: member.id != leader_of(keys))
    killed, left = members
    killed.kill()
    more()
    wait_until(lambda: sorted(owners(left.api, names).values()) == [*each_one[2:], 2])
    arrive(left.api)
    if freezes:
        added = spawn()
        added.wait()
        wait_until(lambda: sorted(owners(added.api, names).values()) == each_one)
        more()
        arrive(added.api)
    for config in configs:
        assert_nothing_lost_nothing_twice(config, range(count))


def test_any_worker_takes_changes_of_one_connector_at_once_and_loses_none(
    join: Join, topic: MakeTopic, configure: Configure
) -> None:
    apis = [member.api for member in (join(), join())] * 4
    config = configure(topic(), {"name": f"a?b/ü% {uuid4().hex[:8]}"})
    body = {"name": config["name"], "config": config, "initial_state": "STOPPED"}
    with ThreadPoolExecutor(len(apis)) as pool:
        made = list(pool.map(lambda api: api.post("/connectors", json=body), apis))
        assert Counter(answer.status_code for answer in made) == {201: 1, 409: 7}
        [place] = {a.headers["location"] for a in made if a.status_code == 201}

        def change(number: int) -> int:
            change = {f"transforms.{number}.note": "x"}
            return apis[number].patch(f"{place}/config", json=change).status_code

        assert list(pool.map(change, range(8))) == [200] * 8
        found = apis[0].get(f"{place}/config").json()
        assert {f"transforms.{number}.note" for number in range(8)} <= set(found)
        gone = list(pool.map(lambda api: api.delete(place).status_code, apis))
        assert Counter(gone) == {204: 1, 404: 7}
