"""Queues as Spark streams: sources, the sink, and what settles batches (docs/streams.md)."""
