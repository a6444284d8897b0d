"""What all tables of the fleet records share: names of constraints, column types, and times that keep their zone."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, LargeBinary, MetaData, Text
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

BigId = BigInteger().with_variant(Integer, "sqlite")


class UtcDateTime(TypeDecorator[datetime.datetime]):
    """Aware datetimes in, aware UTC datetimes out; SQLite, which keeps no zone, stores UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime.datetime | None, dialect: Dialect) -> datetime.datetime | None:
        """To UTC. Raises ValueError for a datetime without a zone, whose meaning would depend on the reader."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        utc = value.astimezone(datetime.UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime.datetime | None, dialect: Dialect) -> datetime.datetime | None:
        """Back to an aware UTC datetime."""
        if value is None:
            return None
        return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)


class Base(DeclarativeBase):
    """All tables; names of constraints are fixed, so that migrations can address them on either database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012
        str: Text(),
        datetime.datetime: UtcDateTime(),
        dict[str, Any]: JSON(),
        list[Any]: JSON(),
        bytes: LargeBinary(),
    }
