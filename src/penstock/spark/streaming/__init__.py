"""Queues and logs as Spark streams: the sources of readStream, and settling (docs/streams.md)."""
