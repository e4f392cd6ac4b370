"""Traces, public name: the span of the work on a message, for programs that claim by themselves."""

from penstock.contract.tracing import processing

__all__ = ["processing"]
