"""Step 6: charge payments through a bank's HTTP interface, each of them once."""

import os

import pyarrow as pa
import pyarrow.compute as pc

from clew import Pipeline, cached, files, http, sqlite

BANK = f"http://127.0.0.1:{os.environ.get('BANK_PORT', '8765')}"
ACCOUNT = pa.schema([("country", pa.string()), ("blocked", pa.bool_()), ("limit", pa.int64())])

pipeline = Pipeline("payments")

payments = pipeline.source("payments", files("data/payments.csv", rows_per_event=5))

accounts = cached(http(f"{BANK}/accounts", schema=ACCOUNT), seconds=60)
known = payments.enrich(accounts, ask=lambda payment: f"/{payment['account']}", name="known", deterministic=True)

allowed = ~pc.field("blocked") & (pc.field("cents") <= pc.field("limit"))
decided = known.branch(accepted=allowed, rest="refused", name="decided")


@pipeline.operator(decided["accepted"], deterministic=True)
def charges(payments: pa.Table) -> pa.Table:
    return payments.select(["payment", "account", "cents"])


pipeline.sink(charges, http(f"{BANK}/charges", holds=f"{BANK}/charges"), name="charge", max_turn_events=3)
pipeline.sink(charges, sqlite("payments.db", table="charged"), name="booked")
decided["refused"].sink(sqlite("payments.db", table="refused"), name="refused")
