"""The wire: `messages.py` (what is said), `codec.py` (how it is framed), `sockets.py` (ZeroMQ),
and `records.py` (what the coordinator writes down)."""
