"""docs/changes.md: the refusal that it shows is what is printed."""

from pathlib import Path

import pytest

from clew import Count
from clew.errors import GraphChanged
from tests.docs.pages import ROOT, blocks
from tests.scenarios.shop import Shop

PAGE = ROOT / "docs" / "changes.md"


def test_the_refusal_is_what_is_printed(tmp_path: Path) -> None:
    (shown,) = blocks(PAGE, "")
    shop = Shop(tmp_path, None)
    shop.cut_off()
    with pytest.raises(GraphChanged) as refused:
        shop.run(shop.pipeline(window=Count(3)))
    assert f"error: {refused.value}" == shown.strip()
