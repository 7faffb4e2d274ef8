"""Random numbers by (seed, position): the same token position draws the same number, however the
response was cut into requests. The mixer is splitmix64 (Steele, Lea, Flood 2014)."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(seed: int, position: int) -> int:
    """A 64-bit hash of a seed and a position."""
    z = (seed * _GOLDEN + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    for _ in range(2):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z = (z ^ (z >> 31)) + _GOLDEN & _MASK
    return z


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    return (mix(seed, position) >> 11) * 2.0**-53
