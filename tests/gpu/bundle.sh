#!/bin/bash
# Collect what a bare GPU machine lacks: snakemake, KvikIO, an MPI and Slurm, as three archives.
#
#   tests/gpu/bundle.sh [FOLDER]     (default .cache/gpu-bundle)
#
# Run it on x86-64 Debian or Ubuntu that reaches package indexes. It installs nothing and needs no root.
# The GPU machine must have Python (PYTHON_VERSION, default 3.12) with numpy, numba, pandas, matplotlib,
# cupy, nvidia-ml-py and scikit-learn, in any version; packages named below have the versions of pyproject.toml.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=${1:-$root/.cache/gpu-bundle}
python_version=${PYTHON_VERSION:-3.12}
if [ "$(uname -m)" != x86_64 ]; then
  echo "bundle.sh: this is $(uname -m), but the GPU machine is taken to be x86_64" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The requirements of pyproject.toml by name, with the versions pinned there.
pinned() {
  "$work/venv/bin/python" - "$root/pyproject.toml" "$@" <<'PYTHON'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
groups = project["optional-dependencies"]
every = [*project["dependencies"], *groups["test"], *groups["cuda13"]]
pins = dict(line.split("==") for line in every if "==" in line)
print(*(f"{name}=={pins[name]}" for name in sys.argv[2:]), sep="\n")
PYTHON
}

# Options that describe the GPU machine to pip. To pip, a manylinux tag does not imply the older ones.
target=(--only-binary=:all: --implementation cp --python-version "$python_version")
for tag in 2_28 2_27 2_24 2_17 2_12 2_5; do target+=(--platform "manylinux_${tag}_x86_64"); done
for tag in 2014 2010 1; do target+=(--platform "manylinux${tag}_x86_64"); done

python_packages() {
  local names=(snakemake snakemake-executor-plugin-{slurm,slurm-jobstep}
    jsonschema pyyaml xxhash msgspec threadpoolctl rich prometheus-client pytest pytest-timeout pytest-xdist)
  mapfile -t requirements < <(pinned "${names[@]}")
  [ "${#requirements[@]}" = "${#names[@]}" ]
  # One dependency of snakemake is published as source only: built here, it is a pure wheel.
  "$work/venv/bin/python" -m pip wheel -q --no-deps -w "$work/pure" connection-pool
  "$work/venv/bin/python" -m pip install -q --no-compile --find-links "$work/pure" \
    --target "$work/site" "${target[@]}" "${requirements[@]}"
  # The GPU machine has these, and they are large.
  rm -rf "$work"/site/{numpy,numpy.libs,numpy-*,pandas,pandas-*,scipy*,cupy*}
  # Not needed: solvers for other systems, scripts that name this machine's Python, tests.
  rm -rf "$work"/site/pulp/solverdir/cbc/{osx,win,linux/i*,linux/arm64} "$work/site/bin"
  find "$work/site" -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
}

wheels() {
  mapfile -t requirements < <(pinned mpich mpi4py kvikio-cu13)
  [ "${#requirements[@]}" = 3 ]
  # Besides cupy, KvikIO needs libkvikio in the same version, which in turn needs rapids-logger.
  "$work/venv/bin/python" -m pip download -q --no-deps -d "$work/wheels" "${target[@]}" \
    "${requirements[@]}" "lib${requirements[2]}" rapids-logger
}

slurm() {
  local prefix libraries
  # The package `tests` imports pytest, which python_packages has put into `site`.
  prefix=$(cd "$root" && PYTHONPATH=$work/site "$work/venv/bin/python" -c \
    'from tests.clusters import slurm; print(slurm.unpacked())')
  cp -a "$prefix" "$work/slurm"
  rm -rf "$work/slurm/usr/share"
  libraries=$work/slurm/usr/lib/x86_64-linux-gnu
  # The GPU machine may lack libraries that Slurm finds on this host: copy them as well, except those
  # of the compiler and of the C library, which belong to the system.
  find "$work/slurm" -type f \( -path '*/bin/*' -o -path '*/sbin/*' -o -name '*.so*' \) -print0 |
    LD_LIBRARY_PATH=$libraries/slurm-wlm:$libraries:$work/slurm/lib/x86_64-linux-gnu \
      xargs -0 ldd 2>/dev/null | sed -n 's/.* => \(\/[^ ]*\) (0x.*/\1/p' | sort -u |
    grep -v -e "^$work/" -e '/lib\(c\|m\|dl\|rt\|pthread\|resolv\|util\|gcc_s\|stdc++\)\.so' |
    while read -r library; do
      cp -L "$library" "$libraries/"
    done
}

python3 -m venv "$work/venv"
python_packages
wheels
slurm
mkdir -p "$bundle"
for name in site wheels slurm; do
  XZ_OPT=-9eT0 tar -cJf "$work/$name.tar.xz" -C "$work" --owner=0 --group=0 "$name"
  mv "$work/$name.tar.xz" "$bundle/$name.tar.xz"
done
du -ch "$bundle"/*.tar.xz
