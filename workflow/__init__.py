"""The study around the decoding package: rules, scripts and their library."""
