"""Amounts as a person reads them."""


def duration(seconds: float) -> str:
    """Seconds as 42s, 3m05s or 2h10m."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def size(num_bytes: int) -> str:
    """Bytes as 812 B, 3.1 MB or 2.0 GB."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
