"""The judge's own reading of a log: what is left half read does no harm, and secrets stay secret."""

import gc
import warnings
from pathlib import Path

import pytest

from clew.errors import NewerLog, SetupFailed
from clew.ids import Port
from clew.model.read import opened_log
from clew.run import run
from tests.model.pipelines import each
from tests.model.runs import finished


@pytest.mark.parametrize("place", ["sqlite", "postgresql"])
def test_what_is_left_half_read_is_left_in_peace(tmp_path: Path, postgres_url: str, place: str) -> None:
    url = postgres_url if place == "postgresql" else f"sqlite:///{tmp_path / 'log.db'}"
    pipeline = each(tmp_path)
    run(pipeline, log=url, bodies=str(tmp_path / "bodies"), engine="inline")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with opened_log(url, "each", None) as log:
            left = [log.sent(Port("numbers", "out")), log.taken(Port("doubled", "in"))]
            assert [next(rows).number for rows in left] == [1, 1]
        del left
        gc.collect()


def test_bodies_are_found_wherever_they_begin(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    port = Port("numbers", "out")
    with opened_log(made.url, "each", str(made.bodies)) as log:
        every = list(log.bodies(port, 1, 40))
        assert len(every) == 40
        for first in (40, 1, 17, 3):
            for count in (1, 2, 30):
                assert list(log.bodies(port, first, count)) == every[first - 1 : first - 1 + count]
        assert log.bodies(port, 41, 5) == []


def test_a_log_that_cannot_be_reached_keeps_its_password() -> None:
    url = "postgresql://somebody:s3cret@127.0.0.1:1/nowhere"
    with pytest.raises(SetupFailed, match="the log cannot be read") as raised, opened_log(url, "each", None):
        pass
    assert "s3cret" not in str(raised.value)


def test_a_log_of_a_newer_clew_is_refused(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    made.change("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    with pytest.raises(NewerLog, match="the log of pipeline each has schema version 99"):
        made.verify()
