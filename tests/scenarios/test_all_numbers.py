"""All scenarios are there, by their numbers."""

import re
from pathlib import Path


def test_all_18_scenarios_are_tests_with_their_number_in_their_name() -> None:
    tests = Path(__file__).resolve().parents[1]
    text = "\n".join(path.read_text() for path in tests.rglob("test_*.py"))
    numbers = {int(number) for number in re.findall(r"^def test_scenario_(\d+)_\w+", text, re.MULTILINE)}
    assert numbers == set(range(1, 19))
