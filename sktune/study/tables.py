"""sktune's own tables beside Optuna's."""

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
