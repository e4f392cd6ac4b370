"""What Penstock says and writes, byte for byte, as it was when it was recorded.

Tests here use public surfaces only (`penstock.open`, `penstock.aio`, the command, sockets), so that they stay as
they are while the inside changes. What they expect is in expected/, stores that were written then are in stores/;
`python -m tests.golden --write` records what is expected anew.
"""
