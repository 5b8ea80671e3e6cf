# Trained drafts, where `draft_source` is `train`; the text they learn from, its frequent tokens and prompts of its kind;
# and models put together from a distilled draft and its target.
# Trainings are stopped and go on in resources/training and resources/text, which are no outputs: Snakemake removes the
# outputs of a job that failed.


rule text:
    input:
        plan.target_inputs,
    output:
        stamp=f"resources/text/{plan.pair}/written.json",
    log:
        f"logs/text/{plan.pair}.log",
    conda:
        "../../env/conda.yaml"
    # as in decode.smk: nothing runs beside a timed job, and this would take the machine from one
    threads: 1024
    resources:
        timing_slot=1,
        mem_mb=8000,
        runtime=2880,
    params:
        values=plan.text_values,
    message:
        "the target writes the training text of {plan.pair}"
    script:
        "../scripts/text.py"


rule head:
    input:
        plan.head_inputs,
    output:
        weights=f"resources/drafts/{plan.pair}/{{draft}}/model.safetensors",
        config=f"resources/drafts/{plan.pair}/{{draft}}/config.json",
        record=f"resources/drafts/{plan.pair}/{{draft}}/training.json",
    log:
        f"logs/head/{plan.pair}/{{draft}}.log",
    conda:
        "../../env/conda.yaml"
    threads: 1024
    resources:
        timing_slot=1,
        mem_mb=16000,
        runtime=2880,
    params:
        values=plan.head_values,
    message:
        "training the draft {wildcards.draft} of {plan.pair}"
    script:
        "../scripts/head.py"


rule assemble:
    input:
        plan.assemble_inputs,
    output:
        stamp=f"resources/assembled/{plan.pair}/{{origin}}/{{model}}/specdec.json",
    log:
        f"logs/assemble/{plan.pair}/{{origin}}-{{model}}.log",
    wildcard_constraints:
        origin="shipped|trained",
        model=plan.assembled_pattern,
    localrule: True
    conda:
        "../../env/conda.yaml"
    params:
        draft=lambda wildcards: plan.draft_of(wildcards.model),
        values=plan.assemble_values,
    message:
        "putting the model {wildcards.model} together"
    script:
        "../scripts/assemble.py"


rule vocabulary:
    input:
        plan.vocabulary_inputs,
    output:
        f"resources/vocabulary/{plan.pair}.txt",
    log:
        f"logs/vocabulary/{plan.pair}.log",
    localrule: True
    conda:
        "../../env/conda.yaml"
    params:
        values=plan.vocabulary_values,
    message:
        "listing the frequent tokens of the training text"
    script:
        "../scripts/vocabulary.py"


rule own_prompts:
    input:
        plan.own_prompts_inputs,
    output:
        f"resources/prompts/{plan.pair}/own_kind.jsonl",
    log:
        f"logs/own_prompts/{plan.pair}.log",
    localrule: True
    conda:
        "../../env/conda.yaml"
    params:
        values=plan.own_prompts_values,
    message:
        "prompts of the kind that drafts are trained on"
    script:
        "../scripts/own_prompts.py"
