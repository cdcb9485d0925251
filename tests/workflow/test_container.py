"""The image of the Containerfile: the demo in it has the sum of the host, to the bit."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests import debian
from tests.workspace import REPO, Workspace

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="containers and their base need root here"),
]

# crun refuses some versions of cgroups, and Podman asks for more files than a small VM allows.
CONF = '[containers]\ndefault_ulimits = []\n[engine]\nruntime = "runc"\n'
NUMBER = ("--user=12345:12345", "--passwd=false", "--read-only")


@pytest.fixture(scope="module")
def podman():
    """Builds the image on a base of Debian's packages; runs Podman with it, and leaves nothing."""
    try:
        prefix = debian.unpacked("podman", ("podman", "conmon", "runc", "debootstrap"))
    except debian.PackagesError as error:
        debian.none_here("Podman", error)
    folder = Path(tempfile.mkdtemp(prefix="podman"))  # it takes no path of over 50 letters
    (folder / "containers.conf").write_text(CONF)
    policy = folder / ".config" / "containers" / "policy.json"
    policy.parent.mkdir(parents=True)
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    env = os.environ | {
        "HOME": str(folder), "CONTAINERS_CONF": str(folder / "containers.conf"),
        "PATH": f"{prefix}/usr/bin:{prefix}/usr/sbin:{os.environ['PATH']}",
        "DEBOOTSTRAP_DIR": f"{prefix}/usr/share/debootstrap",
    }  # fmt: skip
    libraries = f"LD_LIBRARY_PATH={debian.library_path(prefix)}"
    own = ["env", libraries, "podman", "--root", folder / "images", "--runroot", folder / "run"]
    own += ["--storage-opt", "overlay.skip_mount_home=true"]  # a mount would stay behind

    def call(*line):
        done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {(done.stdout + done.stderr)[-4000:]}"
        return done.stdout + done.stderr

    # The host's pip may need these two to reach its index; so will that of the build.
    pip, roots = Path("/etc/pip.conf"), Path("/etc/ssl/certs/ca-certificates.crt")
    site = [f"--secret=id=pip,src={pip}"] * pip.exists()
    site += [f"--volume={roots}:/usr/local/share/ca-certificates/host.crt:ro"] * roots.exists()
    try:
        call("debootstrap", "--variant=minbase", "bookworm", folder / "base")
        call("tar", "-C", folder / "base", "-cf", folder / "base.tar", ".")
        call(*own, "import", folder / "base.tar", "docker.io/library/debian:12")
        call(*own, "build", "--network=host", *site, "--tag=shardwise", REPO)
        yield lambda *words: call(*own, *words)
    finally:
        shutil.rmtree(folder)


def test_the_demo_has_the_sum_of_the_host(podman, tmp_path):
    """In a mounted folder, for a user without a name, while the image is read-only."""
    (work := tmp_path / "work").mkdir()
    os.chown(work, 12345, 12345)
    run = ("run", "--rm", "--network=host", *NUMBER, f"--volume={work}:/work", "shardwise")
    podman(*run, "init")
    assert "shardwise: done: results/default/sum.npy" in podman(*run, "run")
    host = Workspace.create(tmp_path / "host")
    host.succeed()
    assert host.file("sum.npy").read_bytes() == (work / "results/default/sum.npy").read_bytes()
