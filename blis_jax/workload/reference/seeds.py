"""Seeds of the reference's subsystems, of which each has a stream of its own."""

from __future__ import annotations

FNV_OFFSET = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3
WORKLOAD = "workload-gen"  # of requests from a specification


def subsystem_seed(master_seed: int, name: str) -> int:
    """Master seed XOR the 64-bit FNV-1a hash of the subsystem's name, signed."""
    return signed(master_seed ^ _fnv1a(name))


def signed(number: int) -> int:
    """What is left of a number in 64 bits, as Go's integers wrap."""
    unsigned = number % 2**64
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def _fnv1a(text: str) -> int:
    value = FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * FNV_PRIME % 2**64
    return value
