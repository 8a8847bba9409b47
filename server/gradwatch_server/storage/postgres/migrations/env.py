"""Environment of alembic: runs the migrations on the connection that it was given."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"], **context.config.attributes["options"]
)
context.run_migrations()
