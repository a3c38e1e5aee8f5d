"""The drill: its plan, short runs of it, and that it fails when the ledger rule is switched off."""

from __future__ import annotations

import pytest

from semel.delivery import Delivery, Guarantee, Mechanism
from semel.drill.plan import ANY_MOMENT, Kind, plan
from semel.failpoints import PLACES

TRANSACTIONAL = Guarantee(Delivery.EXACTLY_ONCE, Mechanism.TRANSACTIONAL, "")
AT_LEAST_ONCE = Guarantee(Delivery.AT_LEAST_ONCE, None, "")


class TestPlan:
    def test_a_seed_gives_the_same_faults_again(self) -> None:
        assert plan(50, 7, TRANSACTIONAL) == plan(50, 7, TRANSACTIONAL)
        assert plan(50, 7, TRANSACTIONAL) != plan(50, 8, TRANSACTIONAL)

    def test_every_kind_comes_before_one_comes_again(self) -> None:
        for seed in range(5):
            assert {f.kind for f in plan(len(Kind), seed, TRANSACTIONAL)} == set(Kind)

    def test_every_place_that_is_reached_is_struck(self) -> None:
        faults = plan(200, 3, TRANSACTIONAL)
        places = {f.place for f in faults if f.kind is Kind.DRIVER_KILL}
        assert places == {*PLACES, ANY_MOMENT} - {"deliver.between"}

    def test_the_place_between_results_and_positions_belongs_to_the_weaker_guarantees(self) -> None:
        assert "deliver.between" in {f.place for f in plan(200, 3, AT_LEAST_ONCE)}

    def test_only_the_store_answers_with_errors(self) -> None:
        faults = plan(100, 1, AT_LEAST_ONCE, [Kind.ERROR])
        assert not any(f.place.startswith("task.") for f in faults)

    def test_faults_of_executors_come_last_so_that_the_cluster_changes_once(self) -> None:
        needs = [f.needs_executors for f in plan(50, 1, TRANSACTIONAL)]
        assert needs == sorted(needs)
        assert [f.number for f in plan(50, 1, TRANSACTIONAL)] == list(range(1, 51))

    @pytest.mark.parametrize("kinds", [[Kind.ERROR], [Kind.ZOMBIE, Kind.DRIVER_KILL]])
    def test_kinds_can_be_chosen(self, kinds: list[Kind]) -> None:
        assert {f.kind for f in plan(20, 1, TRANSACTIONAL, kinds)} == set(kinds)
