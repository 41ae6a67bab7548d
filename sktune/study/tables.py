"""sktune's own tables beside Optuna's."""

from typing import Any

import sqlalchemy
from sqlalchemy import Engine, Table
from sqlalchemy.exc import SQLAlchemyError


def make_table(engine: Engine, table: Table) -> None:
    """Create a table if it does not exist; another process may create it at the same time."""
    try:
        table.create(engine, checkfirst=True)
    except SQLAlchemyError:
        if not sqlalchemy.inspect(engine).has_table(table.name):
            raise


def rows_of(engine: Engine, table: Table, study: str) -> list[dict[str, Any]]:
    """Return the rows of a study by the table's primary key; none without the table, which a reader does not create."""
    if not sqlalchemy.inspect(engine).has_table(table.name):
        return []
    query = sqlalchemy.select(table).where(table.c.study == study).order_by(*table.primary_key.columns)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]
