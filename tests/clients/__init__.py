"""Clients of Amazon SQS, as people install them, on a server of ours."""
