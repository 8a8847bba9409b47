"""The tables of a ledger: brought up to date by one node at a time, refused if they are newer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from gradwatch_server.storage.postgres.address import Address
from gradwatch_server.storage.postgres.connections import SCHEMA
from gradwatch_server.storage.postgres.faults import storage_errors
from gradwatch_server.storage.store import StorageError, StorageFault

logger = logging.getLogger(__name__)

_LOCK: Final = 0x6772_6164_7761_7463
"""Of PostgreSQL's advisory locks the one that is ours: `gradwatc` in ASCII."""

_OPTIONS: Final[dict[str, Any]] = {
    "version_table": "schema_version",
    "version_table_schema": SCHEMA,
}


def migrate(address: Address) -> None:
    """Make the tables of this version, or make them of an older version's, all or none.

    Nodes that start at the same time wait for the first.

    Raises:
        StorageError: If a newer gradwatch made them, or it fails.
    """
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",  # what it is; where it is, the parameters say
        connect_args=address.parameters,
        poolclass=sqlalchemy.NullPool,
        hide_parameters=True,
    )
    with storage_errors(address):
        try:
            with engine.begin() as connection:
                connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_LOCK)))
                _make_schema(connection)
                _upgrade(connection, address.name)
        except sqlalchemy.exc.DBAPIError as error:
            raise (error.orig if isinstance(error.orig, psycopg.Error) else error) from None


def _make_schema(connection: sqlalchemy.Connection) -> None:
    # IF NOT EXISTS would ask for the right to make one also where it is there.
    found = sqlalchemy.text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
    if connection.execute(found, {"name": SCHEMA}).first() is None:
        connection.execute(sqlalchemy.text(f"CREATE SCHEMA {SCHEMA}"))
    connection.execute(sqlalchemy.text(f"SET LOCAL search_path TO {SCHEMA}"))


def _upgrade(connection: sqlalchemy.Connection, name: str) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)  # what it did is said here
    config = Config()
    # Percent signs are alembic's own in what is set.
    place = str(Path(__file__).with_name("migrations")).replace("%", "%%")
    config.set_main_option("script_location", place)
    config.attributes |= {"connection": connection, "options": _OPTIONS}
    scripts = ScriptDirectory.from_config(config)
    newest = scripts.get_current_head()
    found = MigrationContext.configure(connection, opts=_OPTIONS).get_current_revision()
    if found == newest:
        return
    if found is not None and found not in {own.revision for own in scripts.walk_revisions()}:
        msg = (
            f"the ledger {name} has schema version {found}, this gradwatch knows up to {newest}; "
            "use the gradwatch that made it, or another database with --ledger"
        )
        raise StorageError(msg, StorageFault.UNUSABLE)
    command.upgrade(config, "head")
    logger.info("brought %s from schema version %s to %s", name, found or "none", newest)
