"""The ingest socket: who may send, how much, and the bytes that came."""
