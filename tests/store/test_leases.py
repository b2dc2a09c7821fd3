"""Leases: one process at a time has a role, and everybody can see who."""

import time

import pytest

from clew.store.base import Holder, KeptStore
from clew.store.postgres import PostgresStore
from clew.store.sqlite import SqliteStore
from tests.store.conftest import Place

ONE, OTHER, THIRD = (Holder(name, "here", pid) for pid, name in enumerate(("one", "other", "third"), 1))


@pytest.fixture
def shared(store: KeptStore) -> KeptStore:
    return store


def test_a_role_has_one_holder_until_its_time_is_up(shared: KeptStore) -> None:
    assert shared.take_lease("group a", ONE, 60) is None
    told = shared.take_lease("group a", OTHER, 60)
    assert told is not None
    assert (told.holder, told.starts) == (ONE, 1)
    assert 0 < told.left <= 60
    assert shared.take_lease("group b", OTHER, 60) is None


def test_a_role_whose_time_is_up_goes_to_the_next(shared: KeptStore) -> None:
    assert shared.take_lease("group a", ONE, 0) is None
    assert shared.take_lease("group a", OTHER, 60) is None
    assert shared.renew_lease("group a", ONE, 60, {}) is None
    assert shared.take_lease("group a", ONE, 60) is not None


def test_a_role_of_somebody_who_is_known_to_be_dead_goes_to_the_next_at_once(shared: KeptStore) -> None:
    assert shared.take_lease("group a", ONE, 60) is None
    assert shared.take_lease("group a", THIRD, 60, dead=OTHER.name) is not None
    assert shared.take_lease("group a", OTHER, 60, dead=ONE.name) is None
    (row,) = shared.processes()
    assert (row.holder, row.starts) == (OTHER, 2)


def test_who_has_a_role_may_take_it_again_which_is_no_new_start(shared: KeptStore) -> None:
    assert shared.take_lease("group a", ONE, 60) is None
    assert shared.take_lease("group a", ONE, 60) is None
    assert shared.processes()[0].starts == 1


def test_what_a_process_says_of_itself_is_told(shared: KeptStore) -> None:
    shared.take_lease("group a", ONE, 60)
    assert shared.renew_lease("group a", ONE, 60, {"turns": 3}) == ""
    (row,) = shared.processes()
    assert row.report == {"turns": 3}
    assert row.silent < 60


def test_a_late_process_keeps_its_role_while_nobody_else_has_taken_it(shared: KeptStore) -> None:
    shared.take_lease("group a", ONE, 0)
    assert shared.renew_lease("group a", ONE, 60, {}) == ""
    assert shared.take_lease("group a", OTHER, 60) is not None


def test_a_role_that_was_given_up_is_free_and_not_taken_back_by_a_late_word(shared: KeptStore) -> None:
    shared.take_lease("group a", ONE, 60)
    shared.release_lease("group a", OTHER)
    assert shared.take_lease("group a", OTHER, 60) is not None
    shared.release_lease("group a", ONE)
    assert shared.renew_lease("group a", ONE, 60, {}) is None
    assert (shared.processes()[0].left, shared.processes()[0].given_up) == (0.0, True)
    assert shared.take_lease("group a", OTHER, 60) is None


def test_all_who_have_a_role_are_asked_and_the_next_holder_is_not(shared: KeptStore) -> None:
    shared.take_lease("group a", ONE, 60)
    shared.take_lease("group b", OTHER, 60)
    shared.take_lease("gone", THIRD, 0)
    time.sleep(0.002)  # Times are whole milliseconds.
    assert shared.ask_processes("stop") == 2
    assert shared.renew_lease("group a", ONE, 60, {}) == "stop"
    assert shared.take_lease("group b", THIRD, 60, dead=OTHER.name) is None
    assert shared.renew_lease("group b", THIRD, 60, {}) == ""


def test_what_is_asked_of_one_is_asked_of_who_stands_by(shared: KeptStore) -> None:
    shared.take_lease("group a", ONE, 60)
    shared.ask_processes("stop")
    told = shared.take_lease("group a", OTHER, 60)
    assert told is not None
    assert told.asked == "stop"
    shared.release_lease("group a", ONE)
    assert shared.take_lease("group a", OTHER, 60, stood_by=True) is None
    assert shared.renew_lease("group a", OTHER, 60, {}) == "stop"


def test_other_processes_see_the_same(place: Place) -> None:
    one, other = place.declared(), place.open()
    assert isinstance(one, PostgresStore | SqliteStore)
    assert isinstance(other, PostgresStore | SqliteStore)
    one.take_lease("supervisor", ONE, 60)
    assert other.take_lease("supervisor", OTHER, 60) is not None
