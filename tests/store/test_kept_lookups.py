"""Which content a lookup has in a run: the first word holds, also when the log is opened again."""

from clew.protocol.rows import LookupRow
from clew.store.base import Store
from tests.store.conftest import Place


def test_the_first_word_holds(store: Store) -> None:
    assert store.lookups("mapper") == []
    store.keep_lookup("mapper", LookupRow("rates", "abc"))
    store.keep_lookup("mapper", LookupRow("rates", "def"))
    store.keep_lookup("mapper", LookupRow("codes", "012", b"\x00\xff"))
    store.keep_lookup("sink", LookupRow("rates", "def"))
    assert store.lookups("mapper") == [LookupRow("codes", "012", b"\x00\xff"), LookupRow("rates", "abc")]
    assert store.lookups("map") == []


def test_it_holds_when_the_log_is_opened_again(place: Place) -> None:
    place.declared().keep_lookup("mapper", LookupRow("rates", "abc", b"\x01"))
    again = place.declared()
    again.keep_lookup("mapper", LookupRow("rates", "def"))
    assert again.lookups("mapper") == [LookupRow("rates", "abc", b"\x01")]
