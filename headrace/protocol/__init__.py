"""The wire and the journal's records.

`streams.py` (what is known of single tokens), `messages.py` (what is said), `batches.py` (what a
batch is made of), `diagnostics.py` (what the learner reports of tokens), `fields.py` (which values
a field may have), `codec.py` (how a message is framed), `sockets.py` and `identity.py` (ZeroMQ),
and `records.py` (what the coordinator writes down).
"""
