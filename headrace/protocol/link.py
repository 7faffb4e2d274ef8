"""Where and how a process connects: data without a socket."""

import ipaddress
from dataclasses import dataclass

from headrace.config.process import TransportConfig


@dataclass(frozen=True)
class Link:
    """Where and how to connect: address, size limit, key folder."""

    address: str
    max_bytes: int = 64 << 20
    curve_keys: str | None = None

    @classmethod
    def from_config(cls, transport: TransportConfig, address: str) -> "Link":
        """The link of a run's transport section at `address`."""
        return cls(address, int(transport.max_message_mib * 2**20), transport.curve_keys)


def is_loopback(host: str) -> bool:
    """Whether an address never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
