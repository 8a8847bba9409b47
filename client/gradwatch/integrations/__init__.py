"""Callbacks for training frameworks: one module each, imported only by those who use it."""
