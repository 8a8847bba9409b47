"""The ingest port: who may send, how much nonsense is put up with, and the messages that came."""
