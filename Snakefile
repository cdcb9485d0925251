# The entry for both conventions: the rules live in workflow/Snakefile.
# (A plain include would run nothing: its rule all would not be the default target.)
configfile: "config.yaml"


module shardwise:
    snakefile:
        "workflow/Snakefile"
    config:
        config


use rule * from shardwise


onstart:
    # Hooks count in the first Snakefile only; workflow/Snakefile has the same lines for itself.
    from shardwise import workflow as hooks

    hooks.before_jobs(workflow, config)


onerror:
    from shardwise import workflow as hooks

    hooks.after_failure(config)
