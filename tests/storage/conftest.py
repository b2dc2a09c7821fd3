"""One process to launch runs from, and what undisturbed runs do, for all tests of this tree."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.figures import lacking
from tests.storage.launcher import Launcher
from tests.storage.place import Scene
from tests.storage.syscalls import Undisturbed


@pytest.fixture(scope="session")
def _strace(pytestconfig: pytest.Config) -> None:
    if shutil.which("strace") is None:
        lacking(pytestconfig, "strace is missing: make tools")
    traced = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, text=True)
    if traced.returncode:
        lacking(pytestconfig, f"this machine does not let processes be traced: {traced.stderr}")


@pytest.fixture(scope="session")
def launcher(_strace: None) -> Iterator[Launcher]:
    running = Launcher()
    yield running
    running.close()


@pytest.fixture(scope="session")
def _shelf() -> Iterator[Path]:
    """A directory in memory where there is one: what is shown here does not depend on the speed of a disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="clew-storage-", dir=memory) as directory:
        yield Path(directory)


@pytest.fixture
def home(_shelf: Path) -> Iterator[Path]:
    """A directory of the test's own."""
    directory = Path(tempfile.mkdtemp(dir=_shelf))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def undisturbed(launcher: Launcher, _shelf: Path) -> Callable[[Scene], Undisturbed]:
    """Returns what an undisturbed run does, and watches one when it is first asked."""
    watched: dict[str, Undisturbed] = {}

    def of(scene: Scene) -> Undisturbed:
        if scene.name not in watched:
            # As deep below the root as the others: all directories above are synced once.
            watched[scene.name] = Undisturbed.watch(scene, launcher, Path(tempfile.mkdtemp(dir=_shelf)))
        return watched[scene.name]

    return of
