"""kill -9 of the whole process at a point of each of LOG.io's Algorithms 1 to 9, on real Spark, on one log."""

from pathlib import Path

import pytest

from tests.spark.outside import KILLED, script
from tests.spark.test_clusters import expected, outcome, prepared

#: In this order, each on the log that the one before has left. Algorithm 8 finds work only after a write that was
#: performed and not marked, so it follows Algorithm 5.
POINTS = (
    (1, "after-source-read@orders#2"),
    (2, "after-assign@paid#2"),
    (3, "inside-commit@batches#2"),
    (4, "after-generate@ledger#2"),
    (5, "after-write@hourly_sink#1"),
    (8, "before-write-check@hourly_sink#1"),
    (6, "after-source-restore@orders#1"),
    (7, "after-resend@paid#1"),
    (9, "after-recovered-input@hourly#1"),
)


@pytest.mark.timeout(900)
def test_a_process_killed_in_each_of_the_nine_algorithms_leaves_what_a_failure_free_run_leaves(tmp_path: Path) -> None:
    place = prepared(tmp_path / "sales")
    fired = tmp_path / "fired"
    for number, (_, point) in enumerate(POINTS, 1):
        done = script("sales.py", str(place), check=False, CLEW_FAULTS=point, CLEW_FAULTS_FIRED=str(fired))
        assert done.returncode == KILLED, f"{point}: {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
        assert len(fired.read_text().splitlines()) == number
    script("sales.py", str(place))
    assert fired.read_text().splitlines() == [point.partition("#")[0] for _, point in POINTS]
    assert sorted(algorithm for algorithm, _ in POINTS) == list(range(1, 10))
    assert outcome(place) == expected()
