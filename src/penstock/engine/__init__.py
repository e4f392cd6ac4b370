"""Queues at work inside this process, for every store whose rules run here: memory, journal, slate."""
