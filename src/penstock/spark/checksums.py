"""The crc32 of many pieces as that of the whole, so that one call checks them all.

The crc32 of a and then b is that of a, moved on by the length of b, xor that of b. To move one on by a number of
bytes is to multiply it by a power of x modulo the polynomial. That is linear: so a table says for each digit of
the number, in base 256, what becomes of each byte of a crc, and numpy does it for all pieces at once.
"""

import functools
from typing import Any

import numpy as np

_POLYNOMIAL = np.uint32(0xEDB88320)
Column = Any  # of numpy


def joined(crcs: Column, ends: Column, runs: Column) -> Column:
    """The crc32 of each run of pieces that touch each other. `runs` has the number of the first piece of each."""
    lasts = np.append(runs[1:], len(crcs)) - 1
    after = np.repeat(ends[lasts], lasts - runs + 1) - ends  # bytes of the run that follow each piece
    return np.bitwise_xor.reduceat(_moved(crcs, after), runs)


def _moved(crcs: Column, by: Column) -> Column:
    """Each moved on by so many bytes."""
    digit = 0
    while (left := by >> 8 * digit).any():
        table, row = _table(digit), (left & 255) << 10
        crcs = (
            table[row + (crcs & 255)]
            ^ table[row + (256 + (crcs >> 8 & 255))]
            ^ table[row + (512 + (crcs >> 16 & 255))]
            ^ table[row + (768 + (crcs >> 24))]
        )
        digit += 1
    return crcs


@functools.cache
def _table(digit: int) -> Column:
    """For each value of a digit: what becomes of each value of each of the four bytes of a crc."""
    moved = np.empty((256, 32), np.uint32)  # of crcs with a single bit
    moved[0] = np.uint32(1) << np.arange(32, dtype=np.uint32)
    moved[1] = _one_byte(moved[0]) if digit == 0 else _by_one(digit - 1, 255, _by_one(digit - 1, 1, moved[0]))
    for value in range(2, 256):
        moved[value] = _apply(_bytes(moved[1][None])[0], moved[value - 1])
    return _bytes(moved).ravel()


def _by_one(digit: int, value: int, crcs: Column) -> Column:
    """Crcs moved on by a value of a digit."""
    return _apply(_table(digit).reshape(256, 4, 256)[value], crcs)


def _one_byte(crcs: Column) -> Column:
    for _ in range(8):
        crcs = np.where(crcs & 1, crcs >> 1 ^ _POLYNOMIAL, crcs >> 1)
    return crcs


def _bytes(bits: Column) -> Column:
    """From what becomes of each bit to what becomes of each byte, for many tables at once."""
    table = np.zeros((len(bits), 4, 256), np.uint32)
    for byte in range(4):
        for bit in range(8):
            size = 1 << bit
            table[:, byte, size : 2 * size] = table[:, byte, :size] ^ bits[:, 8 * byte + bit, None]
    return table


def _apply(table: Column, crcs: Column) -> Column:
    return table[0][crcs & 255] ^ table[1][crcs >> 8 & 255] ^ table[2][crcs >> 16 & 255] ^ table[3][crcs >> 24]
