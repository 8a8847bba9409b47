"""Which node owns which partition: leases, records, epochs."""
