"""PostgreSQL, for several nodes once they come back: so far the environment of its migrations."""
