"""Everything around the core: sockets, the SQLite log, the engine thread, HTTP, the CLI."""
