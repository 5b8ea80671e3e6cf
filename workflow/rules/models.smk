# Models that the workflow fetches itself. Models of the user's own are looked for before the first job (see Snakefile).


rule model:
    output:
        stamp="resources/models/{model}/specdec.json",
    log:
        "logs/model/{model}.log",
    localrule: True
    conda:
        "../../env/conda.yaml"
    params:
        values=plan.model_values,
    message:
        "fetching and converting the model {wildcards.model}"
    script:
        "../scripts/model.py"
