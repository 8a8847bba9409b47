"""`gradwatch top`, live in a terminal. Only the command imports it, for textual is large."""
