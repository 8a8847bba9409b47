"""Errors of the wire.

* `ProtocolError` (a `ValueError`): bytes that are no record of this protocol
"""


class ProtocolError(ValueError):
    """Bytes on the wire, or a value meant for it, are not a valid record.

    Attributes:
        where: Path of the place, such as `STATS.columns.l2.count`.
    """

    def __init__(self, *, expected: str, got: str, where: str) -> None:
        super().__init__(f"expected {expected}, got {got}, at {where}")
        self.expected = expected
        self.got = got
        self.where = where


def describe(value: object) -> str:
    """Name a value from the wire in a few inert characters: its type, and its size or repr."""
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    if isinstance(value, (list, tuple, dict)):
        return f"{type(value).__name__} of {len(value)}"
    text = ascii(value) if not isinstance(value, str) else ascii(value[:60])
    return f"{type(value).__name__} {text[:60]}"
