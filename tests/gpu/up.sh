#!/bin/bash
# Start a real Slurm with the real GPUs of this machine, without installing anything.
#
#   tests/gpu/up.sh BUNDLE PREFIX     then: . PREFIX/env
#
# BUNDLE is what bundle.sh made; PREFIX is a new folder with a short path (Slurm's sockets lie there).
# Run it as root, only on a machine that nobody else can log in to: this Slurm has no munge.
# `scontrol shutdown` ends it.
set -euo pipefail
bundle=$(cd "$1" && pwd)
mkdir -p "$2"
prefix=$(cd "$2" && pwd)
run=$prefix/run
node=gpunode
# What Slurm may use. The memory is a guess: MemTotal may be too small, as some virtual machines get
# memory only as they use it. config_overrides makes Slurm accept these figures.
cores=$(nproc)
memory_mb=$((cores * 6000))

unpack() {
  local archive
  for archive in site wheels slurm; do tar -xJf "$bundle/$archive.tar.xz" -C "$prefix"; done
  # Not --target: that would drop the MPI library, which lies outside the Python packages.
  python3 -m pip install -q --no-index --no-deps --no-compile --no-warn-script-location \
    --root-user-action=ignore --ignore-installed --prefix "$prefix/mpi" "$prefix"/wheels/*.whl
}

# Write Slurm's commands as scripts that set their own libraries and cluster: every job would inherit
# an LD_LIBRARY_PATH, and Snakemake's job step drops SLURM_CONF.
write_commands() {
  local program name
  mkdir -p "$prefix/bin"
  for program in "$prefix"/slurm/usr/bin/s*; do
    name=$(basename "$program")
    cat > "$prefix/bin/$name" <<SCRIPT
#!/bin/sh
SLURM_CONF='$run/slurm.conf'
export SLURM_CONF
exec /lib64/ld-linux-x86-64.so.2 --library-path '$libraries' --argv0 $name '$program' "\$@"
SCRIPT
    chmod +x "$prefix/bin/$name"
  done
}

# The machine may have an MPI of its own, which mpi4py would load instead: hence MPI4PY_LIBMPI.
write_env() {
  local packages
  packages=$(echo "$prefix"/mpi/lib/python3*/site-packages)
  cat > "$prefix/env" <<ENV
export PATH='$prefix/bin:$prefix/mpi/bin':"\$PATH"
export PYTHONPATH='$packages:$prefix/site'
export MPI4PY_LIBMPI='$prefix/mpi/lib/libmpi.so.12'
ENV
}

# Write one line per device; its type is the last word of the card's name.
write_gres() {
  local index name type
  echo "AutoDetect=off" > "$run/gres.conf"
  while IFS=: read -r index name; do
    index=${index#GPU }
    type=$(sed 's/ (UUID.*//; s/.* //' <<< "$name" | tr '[:upper:]' '[:lower:]')
    if [ ! -e "/dev/nvidia$index" ]; then
      echo "up.sh: nvidia-smi shows GPU $index, but there is no /dev/nvidia$index" >&2
      exit 1
    fi
    echo "NodeName=$node Name=gpu Type=$type File=/dev/nvidia$index" >> "$run/gres.conf"
  done < <(nvidia-smi -L)
}

write_settings() {
  local host only_loopback="" gres
  host=$(hostname -s)
  # This Slurm trusts everyone who reaches its ports: keep them on the loopback interface. That works
  # only if the host's name means a loopback address, as Slurm binds to the address of that name.
  case $(getent ahostsv4 "$(hostname)" || true) in
    127.*) only_loopback="CommunicationParameters=NoCtldInAddrAny,NoInAddrAny" ;;
    *) echo "up.sh: Slurm's ports are open to the network, and it trusts everyone" >&2 ;;
  esac
  gres=$(sed -n 's/.*Type=\([^ ]*\) .*/\1/p' "$run/gres.conf" | sort | uniq -c |
    awk '{ printf "%sgpu:%s:%s", (NR > 1 ? "," : ""), $2, $1 }')
  cat > "$run/slurm.conf" <<CONF
ClusterName=gpu
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
$only_loopback
AuthInfo=cred_expire=10
PluginDir=$prefix/slurm/usr/lib/x86_64-linux-gnu/slurm-wlm
MpiDefault=pmi2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without it each job gets the whole memory of the node, and runs alone.
DefMemPerCPU=2000
GresTypes=gpu
ReturnToService=2
StateSaveLocation=$run/state
SlurmctldPidFile=$run/slurmctld.pid
SlurmctldLogFile=$run/slurmctld.log
SlurmdPidFile=$run/slurmd.pid
SlurmdLogFile=$run/slurmd.log
SlurmdSpoolDir=$run/spool
TmpFS=/tmp
KillWait=5
# There is no accounting: squeue must remember finished jobs.
MinJobAge=3600
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,batch_sched_delay=0,sched_min_interval=0
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=16821 CPUs=$cores RealMemory=$memory_mb Gres=$gres
PartitionName=main Nodes=$node Default=YES MaxTime=1:00:00 State=UP
CONF
  # No job uses cgroups, but on a machine without systemd slurmd needs the name of a cgroup plugin.
  printf 'CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n' > "$run/cgroup.conf"
}

start() {
  local sbin=$prefix/slurm/usr/sbin
  mkdir -p "$run/state" "$run/spool"
  export SLURM_CONF=$run/slurm.conf
  LD_LIBRARY_PATH=$libraries "$sbin/slurmctld"
  LD_LIBRARY_PATH=$libraries "$sbin/slurmd" -N "$node" -d "$sbin/slurmstepd"
  for _ in $(seq 150); do
    if "$prefix/bin/sinfo" -h -o %T 2> /dev/null | grep -qx idle; then
      "$prefix/bin/sinfo" -o 'node %N: %G, %c cores, %m MB, %T' -h
      return
    fi
    sleep 0.2
  done
  echo "up.sh: Slurm's node is not idle after 30 s; its logs say:" >&2
  tail -n 20 "$run"/slurm*.log >&2
  exit 1
}

unpack
libraries=$prefix/slurm/usr/lib/x86_64-linux-gnu
libraries=$libraries/slurm-wlm:$libraries:$prefix/slurm/lib/x86_64-linux-gnu
mkdir -p "$run"
write_commands
write_env
write_gres
write_settings
start
