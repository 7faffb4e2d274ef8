"""Connected processes, the messages that each may send, and rejections."""
