"""Damage to the bytes of a file."""

MUTATIONS = {
    "bit": lambda data, at, rng: data[:at] + bytes([data[at] ^ 1 << rng.integers(8)]) + data[at + 1 :],
    "bytes": lambda data, at, rng: data[:at] + rng.bytes(8) + data[at + 8 :],
    "insertion": lambda data, at, rng: data[:at] + rng.bytes(3) + data[at:],
    "end": lambda data, at, rng: data[:at],
}
