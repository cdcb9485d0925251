# The entry for both conventions: the rules live in workflow/Snakefile.
# (A plain include would run nothing: its rule all would not be the default target.)
configfile: "config.yaml"


module shardwise:
    snakefile:
        "workflow/Snakefile"
    config:
        config


use rule * from shardwise
