# One cell, one job, one parquet file: both arms of one point of the study, alternating in one process.


rule decode:
    input:
        unpack(plan.decode_inputs),
    output:
        f"results/cells/{plan.pair}/{{cell}}.parquet",
    log:
        f"logs/decode/{plan.pair}/{{cell}}.log",
    conda:
        "../../env/conda.yaml"
    # more than there are: scaled down to all of --cores, so that no other job fits beside a timed one; the script holds
    # a lock as well, against other runs on this machine
    threads: 1024
    resources:
        # for profiles that limit it, and for machines that several workflows share
        timing_slot=1,
        mem_mb=8000,
        runtime=60,
    params:
        values=plan.decode_values,
        code=plan.code("decode"),
    message:
        "decoding {wildcards.cell}"
    script:
        "../scripts/decode.py"


# Only where the configuration asks for it: many short continuations of one prompt under one rule, for a test of two
# samples. Nothing of it is timed, but it loads the same models.
rule distribution:
    input:
        unpack(plan.decode_inputs),
    output:
        f"results/distribution/{plan.pair}/{{cell}}.json",
    log:
        f"logs/distribution/{plan.pair}/{{cell}}.log",
    conda:
        "../../env/conda.yaml"
    threads: 1024
    resources:
        timing_slot=1,
        mem_mb=8000,
        runtime=600,
    params:
        values=plan.distribution_values,
        code=plan.code("decode"),
    message:
        "continuations of {wildcards.cell}"
    script:
        "../scripts/distribution.py"
