"""Training drafts for a target: text that the target writes itself, and what learns from it."""
