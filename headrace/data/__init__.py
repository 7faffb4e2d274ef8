"""Data of prompts and answers: tokenizers, images, coordinates, anchors, sessions."""
