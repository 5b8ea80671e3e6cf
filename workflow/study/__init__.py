"""The study's own library: typed configuration, cells, prompts, metrics, statistics, tables, figures, report.

The way of the data has no step back: config.yaml -> cells -> decode -> parquet -> tables -> figures -> report.
Nothing here knows of Snakemake; rules and scripts call in, so that every part can be tested and used without it.
"""
