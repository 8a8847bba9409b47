"""What the tests share: a launcher, a protocol peer, `wait_until`. Imported, never collected."""
