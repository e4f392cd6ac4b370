"""Stores that a server keeps: the contract over HTTP."""
