"""The test suite; a package, so that tests can import `tests.support`."""
