# What methods need measured beforehand, on prompts that are never reported on: one file for each draft that needs one. The
# default study reads committed files (workflow/calibration) where there is one for its draft as configured.


rule calibrate:
    input:
        plan.calibrate_inputs,
    output:
        f"results/calibration/{plan.pair}/{{draft}}.json",
    log:
        f"logs/calibrate/{plan.pair}/{{draft}}.log",
    conda:
        "../../env/conda.yaml"
    # as for timed cells: no other job fits beside it
    threads: 1024
    resources:
        timing_slot=1,
        mem_mb=8000,
        runtime=60,
    params:
        values=plan.calibrate_values,
        code=plan.code("calibrate"),
    message:
        "calibrating {wildcards.draft}"
    script:
        "../scripts/calibrate.py"
