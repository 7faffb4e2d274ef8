"""How colours look: contrast, and what people with a colour deficiency see of them.

Formulas: WCAG 2 relative luminance; Machado, Oliveira and Fernandes 2009 at full severity; CIE
1976.
"""

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
DEFICIENCIES: dict[str, Vector] = {
    "none": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> Vector:
    """#RRGGBB as linear light."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Contrast ratio, 1 to 21."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def blended(colour: str, under: str, opacity: float) -> str:
    """What a browser shows of a colour that is not opaque, as #RRGGBB."""
    channels = [
        round(int(colour[i : i + 2], 16) * opacity + int(under[i : i + 2], 16) * (1 - opacity))
        for i in (1, 3, 5)
    ]
    return "#" + "".join(f"{channel:02X}" for channel in channels)


def difference(one: str, other: str, deficiency: str) -> float:
    """Distance in L*a*b* as somebody with the deficiency sees it."""
    labs = [_lab(_XYZ @ (DEFICIENCIES[deficiency] @ linear(c)).clip(0, 1)) for c in (one, other)]
    return float(np.linalg.norm(labs[0] - labs[1]))


def _lab(xyz: Vector) -> Vector:
    t = xyz / _WHITE
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
