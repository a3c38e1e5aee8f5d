"""The tasks of a connector, as the consumer group's coordinator knows them."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import MemberDescription

from semel.core.errors import ConfigError, LedgerConflict, NotAssigned
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
        """The tasks that are not in the group: one may be frozen with a transaction open on the
        member's partitions.

        Raises:
            NotAssigned: the partitions may not be the member's any more.
        """
        present = {m.group_instance_id for m in self._members(member)}
        return [i for i in map(self.instance, range(tasks)) if i not in present]

    def confirm(self, member: Membership) -> None:
        """Check that a task may still move its positions in another cluster.

        That cluster does not know the group's generations, and a task may have lost partitions
        without knowing it: librdkafka may join before the task has given up what it had. So the
        task asks before each commit there, with its offsets pending: whoever gets the partitions
        waits for pending offsets. This assumes that no task joins twice without being polled,
        because it could then lose partitions and get them back unnoticed.

        Raises:
            NotAssigned: the group is between two generations, or in a newer one.
        """
        self._members(member)

    def is_idle(self) -> bool:
        """Whether no task is in the group; one that has died is in it until its session ends."""
        return self._groups.is_idle(self._name)

    def refuse_running(self) -> None:
        """Raises ConfigError if a task is in the group."""
        if not self.is_idle():
            raise ConfigError(
                f"connector {self._connector} is running, or has ended less than "
                "consumer.override.session.timeout.ms ago (10 s by default): stop it before its "
                "offsets are changed"
            )

    def taken(self) -> LedgerConflict:
        """The error if a driver is not the only one."""
        return LedgerConflict(
            f"connector {self._connector}: another run is or was at work; nothing was moved"
        )

    def _members(self, member: Membership) -> list[MemberDescription]:
        """The group's members, if the partitions belong to this one now."""
        found = self._groups.describe(self._name)
        members = found.members if found and found.state is ConsumerGroupState.STABLE else []
        mine = [m for m in members if m.member_id == member.member_id and m.assignment]
        if not mine or not member.partitions <= assigned_to(mine):
            raise NotAssigned(
                f"connector {self._connector}: consumer group {self._name} has moved on and may "
                "have given this task's partitions to another one"
            )
        return list(members)
