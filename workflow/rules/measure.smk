# What is measured without decoding a cell: what passes cost, where time goes, other tools, long texts. Timed jobs hold
# the machine as those of cells do (see decode.smk).


rule cost_model:
    input:
        plan.measure_inputs,
    output:
        csv=report(
            "results/tables/cost_model.csv",
            caption="../report/measured.rst",
            category="Tables",
            labels={"table": "cost_model"},
        ),
        parquet="results/tables/cost_model.parquet",
    log:
        "logs/cost_model.log",
    conda:
        "../../env/conda.yaml"
    threads: 1024
    resources:
        timing_slot=1,
        mem_mb=8000,
        runtime=60,
    params:
        values=plan.cost_values,
        code=plan.code("costs"),
    message:
        "timing passes of the target and steps of its drafts"
    script:
        "../scripts/cost_model.py"


rule predicted:
    input:
        costs="results/tables/cost_model.parquet",
        cells=plan.predicted_inputs,
    output:
        csv=report(
            "results/tables/predicted.csv",
            caption="../report/measured.rst",
            category="Tables",
            labels={"table": "predicted"},
        ),
        parquet="results/tables/predicted.parquet",
        break_even="results/tables/break_even.csv",
        break_even_parquet="results/tables/break_even.parquet",
    log:
        "logs/predicted.log",
    localrule: True
    conda:
        "../../env/conda.yaml"
    params:
        values=plan.predicted_values,
        code=plan.code("predicted"),
    message:
        "what the cost model predicts"
    script:
        "../scripts/predicted.py"


rule profile:
    input:
        plan.measure_inputs,
    output:
        operators="results/tables/operators.csv",
        memory="results/tables/memory.csv",
        roofline="results/tables/roofline.csv",
        parquet=multiext(
            "results/tables/",
            "operators.parquet",
            "memory.parquet",
            "roofline.parquet",
        ),
    log:
        "logs/profile.log",
    conda:
        "../../env/conda.yaml"
    threads: 1024
    resources:
        timing_slot=1,
        mem_mb=8000,
        runtime=60,
    params:
        values=plan.profile_values,
        code=plan.code("profiling"),
    message:
        "profiling both arms"
    script:
        "../scripts/time_profile.py"


rule long_context:
    input:
        plan.measure_inputs,
    output:
        csv="results/tables/long_context.csv",
        parquet="results/tables/long_context.parquet",
    log:
        "logs/long_context.log",
    conda:
        "../../env/conda.yaml"
    threads: 1024
    resources:
        timing_slot=1,
        mem_mb=8000,
        runtime=240,
    params:
        values=plan.long_context_values,
        code=plan.code("long_context"),
    message:
        "time per token while texts grow long"
    script:
        "../scripts/long_context.py"


rule peers:
    input:
        plan.measure_inputs,
    output:
        csv="results/tables/peers.csv",
        parquet="results/tables/peers.parquet",
    log:
        "logs/peers.log",
    conda:
        "../../env/conda.yaml"
    threads: 1024
    resources:
        timing_slot=1,
        mem_mb=12000,
        runtime=120,
    params:
        values=plan.peers_values,
        code=plan.code("peers"),
    message:
        "the same prompts in other tools"
    script:
        "../scripts/peers.py"


# not part of the study: it writes into README.md, between its markers, and asks for no output of its own
rule readme:
    input:
        "results/tables/peers.csv",
    log:
        "logs/readme.log",
    localrule: True
    conda:
        "../../env/conda.yaml"
    params:
        code=plan.code("readme"),
    message:
        "the table of README.md"
    script:
        "../scripts/readme.py"
