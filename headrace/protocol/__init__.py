"""The wire and the journal's records.

`fields.py` (which values a field may have) and `token_spans.py` (what is known of single tokens);
`messages/` (what is said), `records/` (what the coordinator writes down), `transport/` (how a
message is framed and sent: ZeroMQ).
"""
