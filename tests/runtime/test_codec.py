"""Bodies: what is encoded is decoded again, from any memory, after that memory's owner is gone."""

import gc
import mmap
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from clew.pipeline.schema import normalise
from clew.runtime.codec import BodyTooLarge, _batch, checksum, decode, decode_stream, encode, encode_stream
from tests.pipeline.arrow_types import KEPT, Kept

TABLE = pa.table({"id": list(range(100)), "name": [f"n{i}" for i in range(100)]})


@pytest.mark.parametrize("case", KEPT, ids=str)
def test_every_type_of_the_normal_form_comes_back_equal(case: Kept) -> None:
    table = normalise(pa.table([case.given], names=["c"]))
    expected = pa.table([case.normal], names=["c"])
    assert decode(encode(table), table.schema).equals(expected)
    assert decode_stream(encode_stream(table)).equals(expected)


@pytest.mark.parametrize("case", KEPT, ids=str)
def test_an_empty_table_comes_back_empty(case: Kept) -> None:
    schema = pa.schema({"c": case.normal.type})
    for empty in (schema.empty_table(), pa.table({"c": pa.chunked_array([], case.normal.type)})):
        assert decode(encode(empty), schema).equals(schema.empty_table())
        assert decode_stream(encode_stream(empty)).equals(schema.empty_table())


def test_chunks_become_one_batch() -> None:
    table = pa.concat_tables([TABLE.slice(0, 40), TABLE.slice(40)])
    decoded = decode(encode(table), table.schema)
    assert decoded.equals(TABLE)
    assert decoded.column("id").num_chunks == 1


def test_a_slice_is_encoded_without_the_rest() -> None:
    assert len(encode(TABLE.slice(10, 2))) < len(encode(TABLE)) / 2
    assert decode(encode(TABLE.slice(10, 2)), TABLE.schema).equals(TABLE.slice(10, 2))


def test_the_body_does_not_hold_the_schema() -> None:
    assert b"name" not in encode(TABLE)
    assert b"name" in encode_stream(TABLE)


def test_the_same_records_give_the_same_bytes() -> None:
    assert encode(TABLE) == encode(pa.concat_tables([TABLE.slice(0, 7), TABLE.slice(7)]))


@pytest.mark.parametrize("skew", range(9))
def test_bodies_inside_a_larger_buffer_are_read_in_place(skew: int) -> None:
    data = encode(TABLE)
    whole = bytes(skew) + data + b"tail"
    decoded = decode(memoryview(whole)[skew : skew + len(data)], TABLE.schema)
    assert decoded.equals(TABLE)
    decoded.validate(full=True)


def test_decoding_copies_nothing() -> None:
    data = encode(TABLE)
    before = pa.total_allocated_bytes()
    decoded = decode(data, TABLE.schema)
    assert pa.total_allocated_bytes() == before
    assert decoded.num_rows == 100


def test_a_table_outlives_the_name_of_its_data() -> None:
    data = encode(TABLE)
    tables = [decode(data, TABLE.schema), decode(memoryview(bytearray(data)), TABLE.schema)]
    tables.append(decode_stream(encode_stream(TABLE)))
    del data
    gc.collect()
    # Something else now asks for the memory that a dangling buffer would read.
    rubbish = [bytes(5_000) for _ in range(200)]
    assert all(table.equals(TABLE) for table in tables)
    assert rubbish


def test_memory_in_use_cannot_be_taken_away(tmp_path: Path) -> None:
    growing = bytearray(encode(TABLE))
    decoded = decode(memoryview(growing), TABLE.schema)
    with pytest.raises(BufferError):
        growing.extend(b"more")
    path = tmp_path / "body"
    path.write_bytes(encode(TABLE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        read = decode(memoryview(mapped), TABLE.schema)
        with pytest.raises(BufferError):
            mapped.close()
        assert read.equals(decoded)
        del read


def test_an_encoded_body_does_not_follow_its_table() -> None:
    memory = bytearray(8)
    array = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(memory)])
    data = encode(pa.table({"c": array}))
    memory[0] = 1
    assert decode(data, pa.schema({"c": pa.int64()})).column("c").to_pylist() == [0]


def test_the_checksum_sees_any_changed_byte() -> None:
    data = encode(TABLE.slice(0, 1))
    assert checksum(data) == checksum(memoryview(data))
    for place in range(len(data)):
        assert checksum(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) != checksum(data)


class _Split:
    """Stands for a table with over 2 GiB of text, which Arrow cannot combine into one batch."""

    num_rows = 2
    nbytes = 3 << 30

    def combine_chunks(self) -> "_Split":
        return self

    def to_batches(self) -> list[pa.RecordBatch]:
        return TABLE.slice(0, 1).to_batches() + TABLE.slice(1, 1).to_batches()


def test_an_event_too_large_for_one_batch_is_refused_whole() -> None:
    with pytest.raises(BodyTooLarge, match=r"3,221,225,472 bytes .* rows_per_event") as refused:
        _batch(_Split())
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
