"""A Ray cluster of several nodes on this host: `PYTHON -m tests.integration.ray_cluster CPUS...`.

In: the cores of each node; then, on standard input, names of processes of a run, one a line. Out:
the cluster's address; then for each name `killed` when the node it was on is dead, or `none` where
no node but the head has it. Ends with its input.
"""

import sys
from typing import Any

import psutil
from ray.cluster_utils import Cluster


def main() -> None:
    """Start the nodes, kill those that are asked for, end the others."""
    first, *others = (int(word) for word in sys.argv[1:])
    cluster = Cluster(initialize_head=True, head_node_args=node_of(first))
    nodes = [cluster.add_node(**node_of(cpus)) for cpus in others]
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        found = next((node for node in nodes if has(node, line.strip())), None)
        if found is not None:
            cluster.remove_node(found, allow_graceful=False)
            nodes.remove(found)
        print("none" if found is None else "killed", flush=True)
    cluster.shutdown()


def node_of(cpus: int) -> dict[str, Any]:
    """What a node of the test offers."""
    return {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": 80 << 20}


def has(node: Any, name: str) -> bool:
    """Whether the process of this name runs below a node's raylet."""
    for raylet in node.all_processes["raylet"]:
        for child in psutil.Process(raylet.process.pid).children(recursive=True):
            try:
                words = child.cmdline()
            except psutil.Error:
                continue
            if name in words and "-m" in words:
                return True
    return False


if __name__ == "__main__":
    main()
