"""psycopg 3: types, transactions, COPY, server-side cursors, pipelines."""

import datetime
import decimal
import sys
import uuid

import psycopg
from psycopg.types.json import Jsonb

URL = f"host=127.0.0.1 port={sys.argv[1]} user=pangea dbname=pangea"

with psycopg.connect(URL) as conn:
    conn.execute(
        "create table ps (id serial primary key, s text, n numeric(10, 2), t timestamptz, d date,"
        " i interval, u uuid, j jsonb, a int[], b bytea, f float8, ok boolean)"
    )
    values = {
        "s": "x", "n": decimal.Decimal("1.25"), "t": datetime.datetime.now(datetime.timezone.utc),
        "d": datetime.date(2020, 1, 2), "i": datetime.timedelta(days=1, seconds=3),
        "u": uuid.uuid4(), "j": {"a": [1, None]}, "a": [1, 2, None], "b": b"\x00\xff", "f": 1.5,
        "ok": True,
    }
    sent = {**values, "j": Jsonb(values["j"])}
    names = ", ".join(values)
    marks = ", ".join(f"%({name})s" for name in values)
    for binary in (False, True):
        with conn.cursor(binary=binary) as cur:
            cur.execute(f"insert into ps ({names}) values ({marks}) returning {names}", sent)
            assert cur.fetchone() == tuple(values.values()), binary
    conn.commit()

    with conn.cursor() as cur:
        with cur.copy("copy ps (id, s) from stdin") as copy:
            for number in range(100, 200):
                copy.write_row((number, f"row {number}"))
        with cur.copy("copy (select id from ps where id >= 100 order by id) to stdout") as copy:
            assert [row[0] for row in copy.rows()][:2] == ["100", "101"]
    conn.commit()

    with conn.cursor(name="server_side") as cur:
        cur.itersize = 30
        cur.execute("select id from ps where id >= %s order by id", (100,))
        assert sum(1 for _ in cur) == 100
    with conn.pipeline():
        for number in range(5):
            conn.execute("insert into ps (s) values (%s)", (str(number),))
    conn.commit()

    try:
        with conn.transaction():
            with conn.transaction():
                conn.execute("insert into ps (id) values (1)")
    except psycopg.errors.UniqueViolation as error:
        assert error.diag.constraint_name == "ps_pkey" and error.diag.table_name == "ps"
    assert conn.execute("select count(*) from ps").fetchone() == (107,)
    conn.execute("drop table ps")
print("ok")
