"""Watched parameters, their names, and how a record's columns refer to them."""
