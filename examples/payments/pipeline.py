"""A payment flow: every payment is charged once, or refused with a reason, whatever dies on the way.

    payments ── known ── decided ──┬── (accepted) ──┬── the bank, by HTTP
                                   │                └── entries ── table ledger
                                   └── (refused) ──── table refused

What the bank knows of an account is read on the side, and logged: a payment that was decided stays decided, though the
bank may have blocked the account since. Each write to the bank is one request under a key that never changes. After a
crash the bank is asked whether it has applied the key, and if it has, the request is not sent again.
"""

import os
from typing import Any

import pyarrow as pa

from clew import Pipeline, cached, files, http, sqlite

BANK = f"http://127.0.0.1:{os.environ.get('BANK_PORT', '8765')}"
ACCOUNT = pa.schema([("country", pa.string()), ("blocked", pa.bool_()), ("limit", pa.int64())])
CHARGE = pa.schema([("payment", pa.int64()), ("account", pa.int64()), ("cents", pa.int64())])
REFUSAL = CHARGE.append(pa.field("reason", pa.string()))

pipeline = Pipeline("payments")

payments = pipeline.source("payments", files("data/payments.csv", rows_per_event=10))

accounts = cached(http(f"{BANK}/accounts", schema=ACCOUNT), seconds=600)
known = payments.enrich(accounts, ask=lambda payment: f"/{payment['account']}", name="known", deterministic=True)


@pipeline.operator(
    known, outputs=["accepted", "refused"], schema={"accepted": CHARGE, "refused": REFUSAL}, deterministic=True
)
def decided(payments: pa.Table) -> dict[str, pa.Table]:
    """Refuse what comes from a blocked account, or is above the account's limit."""
    accepted, refused = [], []
    for payment in payments.to_pylist():
        reason = "blocked" if payment["blocked"] else "limit" if payment["cents"] > payment["limit"] else None
        charge = {name: payment[name] for name in CHARGE.names}
        if reason is None:
            accepted.append(charge)
        else:
            refused.append({**charge, "reason": reason})
    return {"accepted": pa.Table.from_pylist(accepted, CHARGE), "refused": pa.Table.from_pylist(refused, REFUSAL)}


def entries(charge: dict[str, Any]) -> list[dict[str, Any]]:
    """Book a charge twice, so that the ledger always comes to nothing."""
    return [
        {"payment": charge["payment"], "account": str(charge["account"]), "cents": -charge["cents"]},
        {"payment": charge["payment"], "account": "merchant", "cents": charge["cents"]},
    ]


accepted = pipeline.port("decided.accepted")
accepted.sink(
    http(f"{BANK}/charges", check=f"{BANK}/applied/{{key}}", holds=f"{BANK}/charges"), name="charge", max_turn_events=8
)
accepted.flat_map(entries, deterministic=True).sink(sqlite("data/shop.db", table="ledger"))
pipeline.port("decided.refused").sink(sqlite("data/shop.db", table="refused"))
