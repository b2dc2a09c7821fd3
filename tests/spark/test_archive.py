"""The archive of the JVM's classes: made at a clean exit, used from then on, and never in the way."""

import os
import subprocess
from pathlib import Path

import pytest

from clew.spark.archive import ClassArchive
from clew.spark.java import find_java
from clew.spark.options import SparkOptions

JAVA = "spark.driver.extraJavaOptions"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return ClassArchive.of(find_java())


def words(archive: ClassArchive) -> list[str]:
    return archive.applied_to(SparkOptions()).conf[JAVA].split()


def written(archive: ClassArchive) -> Path:
    """Return where Java is told to write it."""
    (word,) = [word for word in words(archive) if word.startswith("-XX:ArchiveClassesAtExit=")]
    return Path(word.partition("=")[2])


def test_it_is_made_where_it_is_missing_and_used_where_it_is_there(archive: ClassArchive) -> None:
    assert not any("SharedArchiveFile" in word for word in words(archive))
    written(archive).write_text("classes")
    archive.keep(lambda: True)
    assert archive.path.read_text() == "classes"
    assert f"-XX:SharedArchiveFile={archive.path}" in words(archive)
    archive.keep(lambda: pytest.fail("there is nothing to wait for"))


def test_what_java_did_not_end_well_with_gets_no_name(archive: ClassArchive) -> None:
    written(archive).write_text("half of the")
    archive.keep(lambda: False)
    assert os.listdir(archive.path.parent) == []
    archive.keep(lambda: True)
    assert not archive.path.exists(), "a Java that wrote nothing is none either"


def test_it_is_for_a_local_driver_alone_and_leaves_other_options(archive: ClassArchive, tmp_path: Path) -> None:
    cluster = SparkOptions("spark://host:7077")
    assert archive.applied_to(cluster) is cluster
    own = SparkOptions("local[2,4]", {JAVA: "-Dmine=1"})
    assert archive.applied_to(own).conf[JAVA].endswith(" -Dmine=1")
    (tmp_path / "file").touch()
    nowhere = ClassArchive(tmp_path / "file" / "archive.jsa")
    assert nowhere.applied_to(own) is own
    nowhere.keep(lambda: True)


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 1000])
def test_a_damaged_one_does_not_hinder_a_start(archive: ClassArchive, content: bytes) -> None:
    archive.path.parent.mkdir(parents=True)
    archive.path.write_bytes(content)
    done = subprocess.run([str(find_java().path), *words(archive), "-version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
