"""An overlay is a dict over another one, which stays as it is until the changes are settled."""

from copy import deepcopy

import pytest

from clew.protocol.log.layers import Overlay


def test_a_key_that_is_gone_is_gone_though_the_dict_below_has_it() -> None:
    below = {"a": [1], "b": [2]}
    overlay = Overlay(deepcopy, below)
    del overlay["a"]
    with pytest.raises(KeyError, match="'a'"):
        overlay["a"]
    with pytest.raises(KeyError, match="'a'"):
        del overlay["a"]
    with pytest.raises(KeyError, match="'c'"):
        del overlay["c"]
    assert (list(overlay.items()), below) == ([("b", [2])], {"a": [1], "b": [2]})
    overlay.settle()
    assert below == {"b": [2]}
