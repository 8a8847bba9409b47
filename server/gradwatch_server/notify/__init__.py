"""Notifications: who is told of which alerts, by what, and what became of it."""
