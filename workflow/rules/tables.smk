# Tables of the pair in force. A table needs its own cells and no others.


rule table:
    input:
        # handed to the script as a list inside its own file, never on a command line, however many there are
        plan.table_inputs,
    output:
        csv=report(
            "results/tables/{table}.csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{table}"},
        ),
        parquet="results/tables/{table}.parquet",
    log:
        "logs/table/{table}.log",
    localrule: True
    conda:
        "../../env/conda.yaml"
    params:
        values=plan.table_values,
        code=plan.code("table"),
    message:
        "table {wildcards.table}"
    script:
        "../scripts/table.py"
