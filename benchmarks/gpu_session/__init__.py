"""Measurements that need a GPU: stages in processes of their own, and one table."""
