"""First on PYTHONPATH, lets ranks of a test share one GPU, so that a machine with one runs what needs several.

NCCL refuses two ranks on one device of a host, so each process claims to be a host of its own and talks over sockets:
the same calls as on several GPUs, at no speed worth measuring. Ray is told of more devices than there are
(cluster.gpus_per_node) and leaves the choice to the workers, which take the first they see.
"""

import os

os.environ["NCCL_HOSTID"] = f"process {os.getpid()}"
os.environ["NCCL_SOCKET_IFNAME"] = "lo"
os.environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
