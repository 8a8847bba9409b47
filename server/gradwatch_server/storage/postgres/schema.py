"""The tables in PostgreSQL: brought up to date by one process at a time, refused if unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.conninfo import conninfo_to_dict

from gradwatch_server.storage.rows import StorageError, StorageFault

SCHEMA: Final = "gradwatch"
"""The PostgreSQL schema of all tables, so that the database may have others."""

_LOCK: Final = 0x6772_6164_7761_7463
"""The advisory lock of gradwatch: `gradwatc` in ASCII."""

_OPTIONS: Final[dict[str, Any]] = {
    "version_table": "schema_version",
    "version_table_schema": SCHEMA,
}


def migrate(url: str) -> None:
    """Make the tables of this version, all or none; processes that start together take turns.

    Raises:
        StorageError: If the tables are of an unknown version, or PostgreSQL refuses.
    """
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",  # the driver alone; the parameters say the rest
        connect_args=conninfo_to_dict(url),
        poolclass=sqlalchemy.NullPool,
        hide_parameters=True,
    )
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_LOCK)))
            _make_schema(connection)
            _upgrade(connection)
    except sqlalchemy.exc.DBAPIError as error:
        is_full = getattr(error.orig, "sqlstate", None) == "53100"
        msg = f"PostgreSQL cannot make the tables: {' '.join(str(error.orig).split())}"
        raise StorageError(msg, StorageFault.FULL if is_full else StorageFault.FAILED) from error


def _make_schema(connection: sqlalchemy.Connection) -> None:
    # IF NOT EXISTS would ask for the right to make one also where the schema is there.
    query = sqlalchemy.text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
    if connection.execute(query, {"name": SCHEMA}).first() is None:
        connection.execute(sqlalchemy.text(f"CREATE SCHEMA {SCHEMA}"))
    connection.execute(sqlalchemy.text(f"SET LOCAL search_path TO {SCHEMA}"))


def _upgrade(connection: sqlalchemy.Connection) -> None:
    config = Config()
    # Percent signs are alembic's own in an option.
    place = str(Path(__file__).with_name("migrations")).replace("%", "%%")
    config.set_main_option("script_location", place)
    config.attributes |= {"connection": connection, "options": _OPTIONS}
    scripts = ScriptDirectory.from_config(config)
    revision = MigrationContext.configure(connection, opts=_OPTIONS).get_current_revision()
    if revision is not None and revision not in {
        script.revision for script in scripts.walk_revisions()
    }:
        msg = (
            f"the database has schema version {revision}, this gradwatch knows up to "
            f"{scripts.get_current_head()}; use the gradwatch that made it, or another database"
        )
        raise StorageError(msg, StorageFault.UNUSABLE)
    command.upgrade(config, "head")
