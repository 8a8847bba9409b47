"""The ingest port: who may send, how many bad messages a peer may send, and the messages."""
