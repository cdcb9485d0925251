# For users who expect a Snakefile at the top of a repository: all rules are in workflow/Snakefile.
# (A plain include would run nothing: an included rule all is not the default target.)
configfile: "config.yaml"


module shardwise:
    snakefile:
        "workflow/Snakefile"
    config:
        config


use rule * from shardwise
