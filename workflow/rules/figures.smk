# Figures of the pair in force. They read tables and nothing else.


rule figure:
    input:
        plan.figure_inputs,
    output:
        report(
            "results/figures/{figure}.svg",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        "logs/figure/{figure}.log",
    localrule: True
    conda:
        "../../env/conda.yaml"
    params:
        pair=plan.pair,
        code=plan.code("figure"),
    message:
        "figure {wildcards.figure}"
    script:
        "../scripts/figure.py"
