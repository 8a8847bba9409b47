"""`gradwatch doctor`: the checks that find what keeps gradwatch from working here.

Checks of the machine of an aggregator are in `server`, checks of the way from a training in
`client`, which needs no more than the client does.
"""
