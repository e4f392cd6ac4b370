"""The kinds of store that keep queues on disk or in a bucket."""
