# Under `dispatch: array`, `pool` or `mpi` one job computes all missing shards, which the main process
# finds. So the graph does not grow with the number of shards.
#
# REQUIRED INPUTS: plan.tsv, the input files (or input.npy), B if there is one
# OUTPUTS: products/{shard}-{key}.npy, products/{shard}-{key}.json (the receipt) of all shards;
#          shards/{shard}-{key}.npy if `materialize` is true; logs/computed/{missing}

if run.dispatch == "array":

    rule multiply:
        """Submit an array job for all missing shards and wait; each task asks for these resources."""
        input:
            run.files_for_all,
        output:
            touch(run.results.work("{missing}")),
        log:
            run.results.log("multiply", "{missing}"),
        localrule: True
        conda:
            "../envs/shardwise.yaml"
        resources:
            mem_mb=run.mib("multiply"),
            runtime=run.minutes("multiply"),
        params:
            plan=run.results.plan,
            words=run.worker_words,
        shell:
            'python "$SCRIPTS"/dispatch.py --plan={params.plan:q} --dispatch array'
            " --mem-mb {resources.mem_mb} {params.words} 2> {log:q}"


if run.dispatch == "pool":

    rule pool:
        """Compute all shards on one node, with a process on each of its devices."""
        input:
            run.files_for_all,
        output:
            touch(run.results.work("{missing}")),
        log:
            run.results.log("pool", "{missing}"),
        conda:
            "../envs/shardwise.yaml"
        threads: run.cores_here
        resources:
            mem_mb=run.mib("pool"),
            runtime=run.minutes("pool"),
        params:
            plan=run.results.plan,
            # The most to use, as the profile asks; 0, if it names no number: all that the job finds.
            devices=counted(run.node_words),
            words=run.worker_words,
        shell:
            'python "$SCRIPTS"/dispatch.py --plan={params.plan:q} --dispatch pool'
            " --devices {params.devices} --mem-mb {resources.mem_mb}"
            " {params.words} 2> {log:q}"


if run.dispatch == "mpi":

    rule mpi:
        """Compute all shards by MPI ranks, over as many nodes as the profile asks for."""
        input:
            run.files_for_all,
        output:
            touch(run.results.work("{missing}")),
        log:
            run.results.log("mpi", "{missing}"),
        conda:
            "../envs/shardwise.yaml"
        resources:
            # The MPI launcher and the number of ranks; the profile may override both.
            mpi="mpiexec",
            tasks=2,
            mem_mb=run.mib("mpi"),
            runtime=run.minutes("mpi"),
        params:
            plan=run.results.plan,
            workers=run.workers,
            words=run.worker_words,
        shell:
            'python "$SCRIPTS"/dispatch.py --plan={params.plan:q} --dispatch mpi'
            " --ranks {resources.tasks} --launcher {resources.mpi:q} --workers {params.workers}"
            " --mem-mb {resources.mem_mb} {params.words} 2> {log:q}"
