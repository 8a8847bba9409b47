"""`gradwatch doctor`: what keeps gradwatch from working here, and what to do.

Checks of the machine that an aggregator runs on are in `server`, those of one that trains in
`client`, which needs no more than the client does. Each check is a function, and its line in the
table of its side.
"""
