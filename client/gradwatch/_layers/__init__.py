"""Which parameters are watched, under which names, and how a record's columns refer to them."""
