"""Text to token ids: tokenizers and anchors."""
