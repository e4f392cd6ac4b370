"""A queue's rules, as a pure state machine: no clock, no disk."""
