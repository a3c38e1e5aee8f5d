"""The tasks of a connector, as the consumer group's coordinator knows them."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupState

from semel.errors import NotAssigned
from semel.kafka.groups import Groups, assigned_to
from semel.sinks.protocols import Membership


class Group:
    """The group ``connect-<name>``, whose members' instance ids end with the task's number."""

    def __init__(self, connector: str, name: str, groups: Groups) -> None:
        self._connector = connector
        self._name = name
        self._groups = groups

    def instance(self, task: int | None) -> str:
        """A task's name in the group, and the ``transactional.id`` of its producer."""
        return f"{self._name}-{'driver' if task is None else task}"

    def absent(self, member: Membership, tasks: int) -> list[str]:
        """Check that the partitions belong to the member now; return the absent tasks.

        An absent task may be frozen with a transaction open on these very partitions. A present
        task may have lost them without knowing it: librdkafka may join before a task has given up
        what it had. Another cluster does not know the group's generations, so each task calls this
        before it commits there, with its offsets pending: whoever gets the partitions waits for
        pending offsets. This assumes that no task joins twice without being polled, because it
        could then lose partitions and get them back unnoticed.

        Raises:
            NotAssigned: the group is between two generations, or in a newer one.
        """
        found = self._groups.describe(self._name)
        members = found.members if found and found.state is ConsumerGroupState.STABLE else []
        mine = [m for m in members if m.member_id == member.member_id and m.assignment]
        if not mine or not member.partitions <= assigned_to(mine):
            raise NotAssigned(
                f"connector {self._connector}: consumer group {self._name} has moved on and may "
                "have given this task's partitions to another one"
            )
        present = {m.group_instance_id for m in members}
        return [i for i in map(self.instance, range(tasks)) if i not in present]

    def is_idle(self) -> bool:
        """Whether no task is in the group; one that has died is in it until its session ends."""
        return self._groups.is_idle(self._name)
