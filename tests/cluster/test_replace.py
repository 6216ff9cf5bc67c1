"""Controllers that lost their disk, or have a damaged one, come back from the others."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from tests.cluster.harness import LocalCluster, wait_until

#: Of one replacement: its own deadlines sum up to more than a command's usual patience.
REPLACE_S = 240.0
AGREED = "pertinax_digest_agreed_index "


def replace(cluster: LocalCluster, name: str) -> dict[str, Any]:
    done = cluster.run("cluster", "replace", name, "--json", timeout_s=REPLACE_S)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wipe(directory: Path) -> None:
    """Remove all files; the empty directories are left."""
    for path in directory.rglob("*"):
        if not path.is_dir():
            path.unlink()


def damage(directory: Path) -> None:
    """Flip bits in the middle of what was acknowledged."""
    segment = min((directory / "wal").glob("*.seg"))
    raw = bytearray(segment.read_bytes())
    used = len(raw.rstrip(b"\0"))
    at = 4096 + (used - 4096) // 3
    raw[at : at + 16] = bytes(byte ^ 0x20 for byte in raw[at : at + 16])
    segment.write_bytes(raw)


def agreed_index(cluster: LocalCluster) -> float:
    """Up to which index the leader found all members' states equal; 0 when it never did."""
    url = cluster.member(cluster.status()["leader"])["http"]
    context = ssl.create_default_context(cafile=cluster.info()["ca_file"])
    with urllib.request.urlopen(f"{url}/metrics", context=context, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return max(float(line.removeprefix(AGREED)) for line in lines if line.startswith(AGREED))


def test_a_wiped_and_a_damaged_member_are_replaced_and_carry_the_cluster() -> None:
    with LocalCluster(agents=1) as cluster:
        job = [cluster.submit("--", "true") for _ in range(6)][-1]
        assert cluster.wait_final(job)["phase"] == "Succeeded"
        leader = cluster.leader()
        wiped, damaged = (one["name"] for one in cluster.info()["controllers"] if
                          one["name"] != leader)  # fmt: skip

        cluster.wait_healthy()
        healthy = cluster.run("cluster", "replace", wiped, codes=(4,), timeout_s=REPLACE_S)
        assert "--force" in healthy.stderr

        cluster.kill(wiped)
        wipe(Path(cluster.member(wiped)["data_dir"]))
        refused = cluster.run("up", "--only", wiped, "--dir", cluster.directory, codes=(4,))
        assert f"cluster replace {wiped}" in refused.stderr
        done = replace(cluster, wiped)
        assert done["pid"] == cluster.member(wiped)["pid"]

        cluster.kill(damaged)
        data = Path(cluster.member(damaged)["data_dir"])
        damage(data)
        refused = cluster.run("up", "--only", damaged, "--dir", cluster.directory, codes=(4,))
        assert "cluster replace" in refused.stderr
        done = replace(cluster, damaged)
        assert done["moved_to"] == f"{data}.replaced-1"
        assert (Path(done["moved_to"]) / "wal").is_dir()

        # Both count again: without the third they elect, know the past, and commit.
        cluster.kill(leader)
        wait_until(lambda: cluster.job(job)["phase"] == "Succeeded", "the old job is known")
        later = wait_until(lambda: cluster.submit("--", "true"), "a job is taken")
        assert cluster.wait_final(later)["phase"] == "Succeeded"
        cluster.start(leader)
        cluster.wait_healthy()
        wait_until(lambda: agreed_index(cluster) > 0, "the members' digests were compared")
