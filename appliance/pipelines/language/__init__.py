"""Text ↔ tokens, for models of language: tokenizers, and what is said around a text."""
