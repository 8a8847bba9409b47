"""What one greedy, wide, broken or hostile peer can do to an aggregator: one function each.

Each works until it is told to stop, and counts what was refused to it. Rates are those at which
one process can keep it up, or below. One more is a function in the file of its family, and its line
in `registry`.
"""
