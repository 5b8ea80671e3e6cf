"""Measuring: clocks, fingerprints, audits."""
