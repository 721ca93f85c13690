"""SQLAlchemy 2: its ORM, and what it reads of the catalog, with two drivers."""

import asyncio
import datetime
import decimal
import sys

from sqlalchemy import (
    CheckConstraint, ForeignKey, Identity, Index, MetaData, Numeric, String, create_engine, func,
    inspect, select, text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload,
)

AT = f"pangea@127.0.0.1:{sys.argv[1]}/pangea"


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(30), unique=True)
    full: Mapped[str | None]
    data: Mapped[dict | None] = mapped_column(JSONB)
    tags: Mapped[list[str] | None] = mapped_column(ARRAY(String))
    created: Mapped[datetime.datetime] = mapped_column(server_default=func.now())
    amount: Mapped[decimal.Decimal] = mapped_column(
        Numeric(10, 2), default=decimal.Decimal("1.50")
    )
    addresses: Mapped[list["Address"]] = relationship(
        back_populates="user", cascade="all, delete-orphan"
    )
    __table_args__ = (
        CheckConstraint("name <> ''", name="named"),
        Index("ix_full", "full"),
        {"comment": "people"},
    )


class Address(Base):
    __tablename__ = "addresses"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    email: Mapped[str] = mapped_column(comment="where to write")
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    user: Mapped[User] = relationship(back_populates="addresses")


engine = create_engine(f"postgresql+psycopg://{AT}")
Base.metadata.create_all(engine)
# What is there already is found to be.
Base.metadata.create_all(engine)
with Session(engine) as session:
    both = [Address(email="a@x"), Address(email="b@x")]
    ann = User(name="ann", full="Ann A", data={"a": [1, 2]}, tags=["x", "y"], addresses=both)
    session.add_all([ann, User(name="bob")])
    session.commit()
    counted = select(User.name, func.count(Address.id)).outerjoin(Address)
    counted = counted.group_by(User.name).order_by(User.name)
    assert session.execute(counted).all() == [("ann", 2), ("bob", 0)]
    ann.full = "Other"
    ann.addresses.pop()
    session.commit()
    assert len(ann.addresses) == 1 and ann.tags == ["x", "y"]
    assert ann.amount == decimal.Decimal("1.50")
    asked = select(User).options(selectinload(User.addresses))
    asked = asked.where(User.data["a"][0].as_integer() == 1)
    assert session.scalars(asked).one().name == "ann"
    session.delete(ann)
    session.commit()
    assert session.scalar(select(func.count()).select_from(Address)) == 0

found = inspect(engine)
assert found.get_table_names() == ["addresses", "users"] or found.has_table("users")
columns = {column["name"]: column for column in found.get_columns("users")}
assert list(columns) == ["id", "name", "full", "data", "tags", "created", "amount"]
assert columns["id"]["autoincrement"] and str(columns["amount"]["type"]) == "NUMERIC(10, 2)"
assert found.get_pk_constraint("users")["constrained_columns"] == ["id"]
(key,) = found.get_foreign_keys("addresses")
assert key["referred_table"] == "users" and key["options"] == {"ondelete": "CASCADE"}
assert {index["name"] for index in found.get_indexes("users")} == {"ix_full", "users_name_key"}
assert found.get_unique_constraints("users")[0]["column_names"] == ["name"]
assert found.get_check_constraints("users")[0]["name"] == "named"
assert found.get_table_comment("users") == {"text": "people"}
assert found.get_columns("addresses")[1]["comment"] == "where to write"
reflected = MetaData()
reflected.reflect(engine)
assert set(reflected.tables) == {"users", "addresses"}


async def with_asyncpg():
    other = create_async_engine(f"postgresql+asyncpg://{AT}")
    async with other.begin() as conn:
        assert await conn.scalar(text("select count(*) from users")) == 1
        await conn.run_sync(lambda sync: inspect(sync).get_columns("users"))
    await other.dispose()


asyncio.run(with_asyncpg())
Base.metadata.drop_all(engine)
print("ok")
