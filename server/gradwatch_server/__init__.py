"""The aggregator: takes records in, decides on alerts, and answers over HTTP."""
