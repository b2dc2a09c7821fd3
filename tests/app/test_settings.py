"""Settings: a flag wins over the environment, which wins over the file, which wins over the default."""

import json
from pathlib import Path
from typing import Any

import pytest

from clew.app.settings import SettingRefused, Settings, SettingsRefused, find, from_texts, in_force
from clew.pipeline.load import load
from tests.app.pipelines import call, kept, log_url, write, write_numbers


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told() -> dict[str, tuple[Any, str]]:
    return {row["setting"]: (row["value"], row["from"]) for row in json.loads(call("settings", "--json").stdout)}


def test_without_anything_the_defaults_hold() -> None:
    assert in_force() == Settings()
    assert find().origins == {}
    assert {origin for _, origin in told().values()} == {"default"}


def test_each_level_wins_over_the_one_below(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, "clew.toml", 'poll = 3.0\nattempts = 5\nmaster = "local[3]"\nturn-seconds = 0.5\n')
    monkeypatch.setenv("CLEW_ATTEMPTS", "6")
    monkeypatch.setenv("CLEW_MASTER", "local[4]")
    found = find({"master": "local[5]", "log": None})
    settings = found.settings
    assert (settings.master, settings.attempts, settings.poll, settings.turn_seconds) == ("local[5]", 6, 3.0, 0.5)
    assert found.origins == {
        "master": "flag", "attempts": "environment, CLEW_ATTEMPTS", "poll": "clew.toml", "turn_seconds": "clew.toml",
    }  # fmt: skip
    assert told()["master"] == ("local[4]", "environment, CLEW_MASTER")


def test_pyproject_holds_them_where_there_is_no_clew_toml(here: Path) -> None:
    write(here, "pyproject.toml", "[tool.clew]\nattempts = 5\n[tool.other]\nx = 1\n")
    assert find().origins == {"attempts": "pyproject.toml"}
    write(here, "clew.toml", "poll = 2\n")
    assert find().origins == {"poll": "clew.toml"}


def test_settings_of_spark_are_put_together_key_by_key(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, "clew.toml", '[conf]\n"spark.a" = 1\nspark.b = true\n"spark.c" = "file"\n')
    monkeypatch.setenv("CLEW_CONF", "spark.c=env 'spark.d=two words'")
    found = find({"conf": {"spark.a": "flag"}})
    assert found.settings.conf == {"spark.a": "flag", "spark.b": "true", "spark.c": "env", "spark.d": "two words"}
    assert found.origins == {
        "conf.spark.a": "flag", "conf.spark.b": "clew.toml", "conf.spark.c": "environment, CLEW_CONF",
        "conf.spark.d": "environment, CLEW_CONF",
    }  # fmt: skip


def test_the_environment_holds_lists_with_commas_or_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_JARS", "a.jar, b.jar")
    monkeypatch.setenv("CLEW_PY_FILES", '["a,b.zip"]')
    assert (in_force().jars, in_force().py_files) == (["a.jar", "b.jar"], ["a,b.zip"])


def refused(**flags: Any) -> str:
    with pytest.raises(SettingRefused) as raised:
        in_force(flags)
    return str(raised.value)


def test_a_setting_that_is_not_there_is_refused_with_the_one_that_was_meant(here: Path) -> None:
    write(here, "clew.toml", "atempts = 5\n")
    assert refused() == (
        "clew.toml: there is no setting atempts: did you mean attempts?; mend its name, or remove it; `clew settings` "
        "lists them all"
    )
    write(here, "clew.toml", "something = 5\n")
    assert "clew.toml: there is no setting something: there are log, bodies, engine, " in refused()


def test_a_variable_that_looks_like_a_setting_is_refused_and_others_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("CLEW_DEBUG", "1")
    assert in_force() == Settings()
    monkeypatch.setenv("CLEW_MASTR", "local")
    assert refused() == (
        "environment: there is no setting CLEW_MASTR: did you mean CLEW_MASTER?; mend its name, or unset it"
    )


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CLEW_POLL", "0", "CLEW_POLL is '0', and input should be greater than 0"),
        ("CLEW_ATTEMPTS", "many", "CLEW_ATTEMPTS is 'many', and input should be a valid integer"),
        ("CLEW_ENGINE", "flink", "CLEW_ENGINE is 'flink', and input should be 'spark' or 'inline'"),
        ("CLEW_CONF", "spark.a", "CLEW_CONF: 'spark.a' is no K=V; write it as spark.a=VALUE"),
        ("CLEW_JARS", "[a", "CLEW_JARS begins as JSON and is none"),
    ],
)
def test_a_value_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert said in refused()


def test_a_value_in_a_file_is_refused_with_the_file(here: Path) -> None:
    write(here, "clew.toml", "give_up_after = 0\n")
    assert refused() == (
        "clew.toml: give_up_after is 0, and input should be greater than or equal to 1; give it such a value, or leave "
        "it out for the default"
    )
    write(here, "clew.toml", "gc_every = true\n")
    assert refused() == (
        "clew.toml: gc_every is True, and input should be neither true nor false; give it such a value, or leave it "
        "out for the default"
    )
    write(here, "clew.toml", "poll = \n")
    assert refused().startswith("clew.toml: it cannot be read (Invalid value")


def test_all_mistakes_are_told_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, "clew.toml", "atempts = 5\ngive_up_after = 0\n")
    monkeypatch.setenv("CLEW_POLL", "0")
    with pytest.raises(SettingsRefused) as raised:
        in_force()
    assert str(raised.value) == (
        "3 settings cannot be used:\n"
        "  environment: CLEW_POLL is '0', and input should be greater than 0; give it such a value, or leave it out "
        "for the default\n"
        "  clew.toml: give_up_after is 0, and input should be greater than or equal to 1; give it such a value, or "
        "leave it out for the default\n"
        "  clew.toml: there is no setting atempts: did you mean attempts?; mend its name, or remove it; `clew "
        "settings` lists them all"
    )
    monkeypatch.setenv("CLEW_MASTR", "local")
    monkeypatch.setenv("CLEW_ENGIN", "inline")
    with pytest.raises(SettingsRefused, match=r"CLEW_ENGIN: did you mean CLEW_ENGINE\?(.|\n)*CLEW_MASTR: did you mean"):
        in_force()
    with pytest.raises(SettingsRefused, match=r"no setting pol: (.|\n)*no setting mastr: "):
        from_texts(["pol=1", "mastr=local"])


def test_set_gives_any_setting() -> None:
    assert from_texts(["poll=2", "jars=a.jar,b.jar"]) == {"poll": "2", "jars": ["a.jar", "b.jar"]}
    with pytest.raises(SettingRefused, match="--set: there is no setting pol: did you mean poll"):
        from_texts(["pol=2"])
    with pytest.raises(SettingRefused, match="--set: 'turn_seconds' is no K=V; write it as turn_seconds=VALUE"):
        from_texts(["turn_seconds"])
    with pytest.raises(SettingRefused, match="--set: '=2' is no K=V; write it as NAME=2"):
        from_texts(["=2"])


def test_secrets_are_not_shown(here: Path) -> None:
    write(here, "clew.toml", 'log = "postgresql://me:pw1@host/db"\n[conf]\n"spark.my.password" = "pw2"\n')
    shown = call("settings").stdout + call("settings", "--json").stdout
    assert "pw1" not in shown
    assert "pw2" not in shown
    assert "postgresql://me:***@host/db" in shown


def test_the_operators_that_declare_nothing_take_the_settings(here: Path) -> None:
    graph = load(write_numbers(here)).graph()
    applied = Settings(attempts=7, max_turn_events=9, capacity_events=11).applied_to(graph)
    doubled, sink = applied.operators["doubled"].settings, applied.operators["doubled_sink"].settings
    assert (doubled.attempts, doubled.max_turn_events, doubled.capacity.events) == (7, 5, 11)
    assert sink.max_turn_events == 9
    assert (applied.links, applied.fingerprint) == (graph.links, graph.fingerprint)


def test_policies_and_sessions_are_made_of_them() -> None:
    settings = Settings(restart_delay=1, give_up_after=2, gc_every=3, master="local", conf={"a": "b"}, jars=["j"])
    policy = settings.policy
    assert (policy.first_delay, policy.give_up_after, policy.collect_every) == (1, 2, 3)
    assert (settings.spark.master, settings.spark.configuration) == ("local", {"a": "b", "spark.jars": "j"})


def test_a_run_uses_them(here: Path) -> None:
    file = write_numbers(here)
    write(here, "clew.toml", f'engine = "inline"\nlog = "{log_url(here)}"\n[conf]\n"spark.a" = "1"\n')
    assert call("run", file).exit_code == 0
    assert kept(here) == [2 * number for number in range(20)]
    assert (here / "log.db").exists()
    assert call("status", file).exit_code == 0
    assert call("gc", file).exit_code == 0
    assert call("verify", file).exit_code in (0, 4)


def test_a_wrong_file_stops_every_command_with_one_sentence(here: Path) -> None:
    file = write_numbers(here)
    write(here, "clew.toml", "engin = 1\n")
    for command in ("run", "check", "graph", "status", "gc", "verify", "chaos"):
        result = call(command, file)
        assert result.exit_code == 1
        assert "error: clew.toml: there is no setting engin: did you mean engine?" in result.stderr
