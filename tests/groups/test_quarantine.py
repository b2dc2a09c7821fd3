"""Where groups are processes, a run ends when all that is left waits for a decision, and goes on when that is made."""

from pathlib import Path

from tests.groups.runs import Apart

GOOD = "SELECT n FROM good"


def test_what_was_set_aside_is_tried_again_by_the_next_run(tmp_path: Path, postgres_url: str) -> None:
    run = Apart(tmp_path, postgres_url, "poisoned", events=8)
    try:
        assert run.start().wait(120) == 5
        assert run.held(GOOD) == [(n,) for n in range(8) if n != 3]
        # Nobody has decided: it ends again, and not before its groups were asked.
        assert run.start().wait(120) == 5
        (tmp_path / "gate.mended").touch()
        code, out = run.call("quarantine", "retry", run.file, "--all", *run.log)
        assert code == 0, out
        assert run.start().wait(120) == 0
        assert run.held(GOOD) == [(n,) for n in range(8)]
    finally:
        run.close()
