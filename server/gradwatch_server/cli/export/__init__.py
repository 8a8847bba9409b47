"""`gradwatch export`: what an aggregator keeps of a run, in files that others read."""
