"""asyncpg: types in binary, cursors, COPY, pools."""

import asyncio
import datetime
import decimal
import json
import sys
import uuid

import asyncpg

AT = {"host": "127.0.0.1", "port": int(sys.argv[1]), "user": "pangea", "database": "pangea"}


async def main():
    conn = await asyncpg.connect(**AT)
    await conn.execute(
        "create table ap (id serial primary key, s text, n numeric, t timestamptz, d date,"
        " i interval, u uuid, j jsonb, a int[], b bytea, f float8, o oid)"
    )
    values = [
        "x", decimal.Decimal("1.25"), datetime.datetime.now(datetime.timezone.utc),
        datetime.date(2020, 1, 2), datetime.timedelta(days=1, seconds=3), uuid.uuid4(),
        json.dumps({"a": 1}), [1, 2, None], b"\x00\xff", 1.5, 7,
    ]
    marks = ", ".join(f"${at + 1}" for at in range(len(values)))
    row = await conn.fetchrow(
        f"insert into ap (s, n, t, d, i, u, j, a, b, f, o) values ({marks}) returning *", *values
    )
    assert list(row.values())[1:] == values, row
    async with conn.transaction():
        rows = [(str(number),) for number in range(50)]
        await conn.executemany("insert into ap (s) values ($1)", rows)
        seen = 0
        async for _ in conn.cursor("select id from ap order by id", prefetch=10):
            seen += 1
        assert seen == 51
    records = [(number + 1000, "c") for number in range(100)]
    assert await conn.copy_records_to_table("ap", records=records, columns=["id", "s"]) == "COPY 100"
    found = await conn.fetchrow("select relname, relkind from pg_class where relname = 'ap'")
    assert found["relkind"] == b"r"
    try:
        await conn.fetch("select * from nothing")
        raise AssertionError("there is nothing")
    except asyncpg.UndefinedTableError:
        pass
    async with asyncpg.create_pool(**AT, min_size=2, max_size=4) as pool:
        asked = [pool.fetchval("select 1 + $1::int", number) for number in range(8)]
        assert await asyncio.gather(*asked) == list(range(1, 9))
    await conn.execute("drop table ap")
    await conn.close()


asyncio.run(main())
print("ok")
