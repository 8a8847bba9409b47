"""The schema of a ledger: each change of it is a module in `versions/`, which never changes."""
