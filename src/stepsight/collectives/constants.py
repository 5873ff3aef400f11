"""Every figure of collectives that was chosen or read off runs: value, unit, what it rests on, what it moves.

The catalogue: the measured curves of collectives/catalogue, 563 of them.
"""

from __future__ import annotations

from stepsight.basis import Basis

# work side by side
COMPUTE_UNDER_COMM = 1.05
COMM_UNDER_COMPUTE = 1.13
COMPUTE_BESIDE_COMPUTE = 1.67
# rates and sites
RATES_GBPS = (1.25, 3.125, 6.25, 12.5, 25.0, 50.0, 100.0, 200.0)
LISTED_RATE = 0.02
SITE_SPREAD = 0.3
# without a curve
LINK_EFFICIENCY = 0.75
KERNEL_FLOOR_US = 8.0
ROOFLINE_SPREAD = 0.5
LEAST_PCIE_EFFICIENCY = 0.25
# from one curve to another
SAME_LINK = 0.15
KIND_STEP = 2.0
RANK_STEP = 1.0
LINK_STEP = 3.0
GPU_STEP = 4.0
FORCED_STEP = 1.0
TCP_STEP = 3.0
HARD_RANK_STEP = 3.5
OTHER_STACK_STEP = 1.5
MESH_EXCHANGE_STEP = 2.0
FARTHEST = 12.0
FILL_BELOW = 2.0
FILL_ABOVE = 16.0
FADE_OCTAVES = 4.0
STACK_SPREAD = ((17.0, 23.0), (0.30, 0.02))
RELATIVE_SPREAD = 0.20
RANK_SPREAD = {"nvswitch": 0.06, "nvlink_mesh": 0.25, "xgmi": 0.15}
OTHER_RANK_SPREAD = 0.30
NODE_SPREAD = 0.25
OTHER_NODE_SPREAD = 0.35
KIND_SPREAD = 0.15
LEAST_NIC_EFFICIENCY = 0.7
STARTED_BYTES = 2.0**20
TWO_NODE_GAIN = 1.9
TREE_LATENCY_OFFSET = 0.4
# one curve
TAIL_FACTOR = 4.0
FLOOR_SHARE = 0.1
LEAST_SPREAD = 0.02
LONE_DIP = 0.5
DEFAULT_SPREAD = 0.10
ABOVE_SPREAD = 0.05
BELOW_SPREAD = 0.09
LATENCY_BYTES = 512
FAR_APART = 8.0
ON_A_LINE = 0.02
KNOT_OCTAVES = 1.0
FEWEST_KNOWN = 4
FEWEST_SHARED = 3
ALIKE = 0.15
LEVEL = 0.15
STRAIGHT = 0.4

_LN = "standard deviation of ln(time)"
_DOUBLINGS = "distance, in doublings of a rate"
_NEAREST = "which measured curve stands in"
_CHOSEN_STEP = "chosen: orders the stand-ins of the catalogue"

BASES = {
    "COMPUTE_UNDER_COMM": Basis(
        "times longer",
        "kernels of 20 µs and more that ran both alone and wholly under NCCL kernels in one trace, weighted"
        " by time: 1.06 on 4×V100 (29 kinds of kernel, TorchRec DLRM), 1.01 and 1.10 on A100 (21, production"
        " DLRM; 15, ResNet-50 DDP), 1.01 on 8×H100 (2)",
        "compute that overlaps collectives", runs=4,
    ),
    "COMM_UNDER_COMPUTE": Basis(
        "times longer",
        "synced DDP all_reduces of 33.6 MB under backward on 4×V100: 0.90 ms in the median, 0.79 ms alone;"
        " without compute beside them 8×A100 all_reduces meet their curve (596 of 595 µs)",
        "collectives that overlap compute", runs=1,
    ),
    "COMPUTE_BESIDE_COMPUTE": Basis(
        "times longer",
        "kernels that began while one with more blocks than fit ran on another stream of a 4×V100 (TorchRec"
        " DLRM, 142 of them, against the same alone) took longer by 0.40 of the time both ran; on an A100"
        " (production DLRM) 0.54, one kernel; beside kernels whose blocks all fit −0.05 (16)",
        "kernels on several streams of one GPU", runs=2,
    ),
    "RATES_GBPS": Basis(
        "GB/s a GPU", "the rates that NICs have: 10, 25, 50, 100, 200, 400, 800 and 1600 Gb/s",
        "collectives over nodes: where faster NICs may not cost more",
    ),
    "LISTED_RATE": Basis("share", "chosen: within this a rate is the listed one", "none: rounding of rates"),
    "SITE_SPREAD": Basis(
        _LN,
        "one figure says nothing of other sizes and of the day: the 5–95 % range of the one published site"
        " is a factor of five for all_reduce on four nodes",
        "intervals on clusters with stated bandwidth", runs=1,
    ),
    "LINK_EFFICIENCY": Basis(
        "bus over link bandwidth of large messages",
        "nccl-tests: 8×A100 NVSwitch 230 of 300 GB/s, 8×V100 130 of 150, PCIe 4 about 20 of 32, 8×H100 360"
        " to 480 of 450",
        "collectives on links without a measured curve", runs=4,
    ),
    "KERNEL_FLOOR_US": Basis(
        "µs", "a collective of 8 bytes between two GPUs (nccl-tests)",
        "small collectives without a measured curve", runs=1,
    ),
    "ROOFLINE_SPREAD": Basis(
        _LN, "data-sheet bandwidth against the catalogue (docs/accuracy.md)",
        "intervals without a measured curve"
    ),
    "LEAST_PCIE_EFFICIENCY": Basis(
        "bus over link bandwidth of large messages",
        "0.3 on RTX 2080 Ti without peer access, 0.45 to 0.8 on A100-PCIE and RTX PRO 6000; eight L40S and"
        " eight RTX 3090 read 0.06 in one source each, which says more about those hosts than about the GPUs",
        "large collectives over PCIe", runs=5,
    ),
    "SAME_LINK": Basis(
        "share of the rate", "chosen: rates within it are one link, stated by other data sheets", _NEAREST
    ),
    "KIND_STEP": Basis(_DOUBLINGS, f"{_CHOSEN_STEP}: another collective", _NEAREST),
    "RANK_STEP": Basis(_DOUBLINGS, f"{_CHOSEN_STEP}: a doubled group on a switch", _NEAREST),
    "LINK_STEP": Basis(_DOUBLINGS, f"{_CHOSEN_STEP}: another kind of link", _NEAREST),
    "GPU_STEP": Basis(_DOUBLINGS, f"{_CHOSEN_STEP}: another GPU", _NEAREST),
    "FORCED_STEP": Basis(_DOUBLINGS, f"{_CHOSEN_STEP}: a pinned algorithm", _NEAREST),
    "TCP_STEP": Basis(_DOUBLINGS, f"{_CHOSEN_STEP}: TCP for RDMA", _NEAREST),
    "HARD_RANK_STEP": Basis(
        _DOUBLINGS, f"{_CHOSEN_STEP}: a doubled group where links are not alike (mesh, PCIe)", _NEAREST
    ),
    "OTHER_STACK_STEP": Basis(
        _DOUBLINGS,
        "chosen, so that others' curves of such a machine stand behind the user's own, doubled on a switch:"
        " 4 → 8 GPUs is 5 to 6 % off, another software stack 57 % below 1 MiB and 18 % up to 8 MiB"
        " (catalogue)",
        _NEAREST,
    ),
    "MESH_EXCHANGE_STEP": Basis(
        _DOUBLINGS,
        f"{_CHOSEN_STEP}: rings use only the pairs that a mesh joins, an exchange needs them all", _NEAREST,
    ),
    "FARTHEST": Basis(
        _DOUBLINGS, "chosen: curves farther than the nearest by more do not fill its gaps",
        "sizes outside the nearest curve",
    ),
    "FILL_BELOW": Basis(
        "times below a curve's range", "chosen: from here a farther curve fills in",
        "sizes outside the nearest curve",
    ),
    "FILL_ABOVE": Basis(
        "times above a curve's range",
        "the nearer curve's own slope is 4 % off at 16 times its largest size; another stack is 3 %, a"
        " relative 25 % (catalogue, 563 curves)",
        "sizes outside the nearest curve", runs=563,
    ),
    "FADE_OCTAVES": Basis(
        "octaves", "chosen: a step between two curves fades below the seam, as latency is another matter",
        "sizes outside the nearest curve",
    ),
    "STACK_SPREAD": Basis(
        f"log2(bytes), {_LN}",
        "between software stacks on one machine: median over the catalogue's curves with several sources,"
        " 0.30 below 8 MiB and 0.02 above",
        "intervals",
    ),
    "RELATIVE_SPREAD": Basis(
        _LN,
        "another machine with the same kind of link, scaled by its rate: 13 % in the mean above 1 MiB,"
        " leaving machines out of the catalogue, which has more relatives than most platforms will",
        "intervals",
    ),
    "RANK_SPREAD": Basis(
        f"{_LN} per doubling of the group",
        "leaving machines out of the catalogue, 4 → 8 GPUs reads 5 to 6 % on NVSwitch and 23 to 36 % on"
        " PCIe; the mesh and xGMI are set between",
        "intervals",
    ),
    "OTHER_RANK_SPREAD": Basis(f"{_LN} per doubling of the group", "as RANK_SPREAD, PCIe", "intervals"),
    "NODE_SPREAD": Basis(
        _LN, "from one group over nodes to another on one machine: 24 % in the mean, leaving curves out",
        "intervals",
    ),
    "OTHER_NODE_SPREAD": Basis(
        _LN, "as NODE_SPREAD from another machine: 35 % in the mean, leaving machines out", "intervals"
    ),
    "KIND_SPREAD": Basis(
        _LN, "from one collective to another on one group: 12 % in the mean, leaving kinds out", "intervals"
    ),
    "LEAST_NIC_EFFICIENCY": Basis(
        "share of the NICs' rate",
        "large messages over RDMA: 0.72 on Polaris, 0.84 to 0.98 on DGX A100, Alps, Kestrel, Snellius, GCP A3"
        " Ultra and H100 clusters",
        "large collectives over nodes", runs=7,
    ),
    "STARTED_BYTES": Basis(
        "bytes", "chosen: by this size all protocols and channels are at work; what follows is the wire",
        "collectives over nodes",
    ),
    "TWO_NODE_GAIN": Basis(
        "times the ring's bandwidth",
        "all_reduce over two nodes may send each byte once (a tree): 158 against 92 GB/s on Alps, 487 GB/s on"
        " 8 × 50 GB/s NICs on AWS p5",
        "all_reduce over two nodes", runs=2,
    ),
    "TREE_LATENCY_OFFSET": Basis(
        "added to log2(nodes)",
        "all_reduce's floor: 21, 34, 48, 66, 80, 143 µs at 2, 4, 8, 16, 32, 128 nodes (Alps, NCCL 2.23)",
        "small all_reduces over nodes", runs=1,
    ),
    "TAIL_FACTOR": Basis(
        "times in size", "chosen: the slope beyond either end is that of so much of the curve",
        "sizes outside a curve",
    ),
    "FLOOR_SHARE": Basis(
        "share of the first time", "chosen: no time below the smallest size is less", "sizes below a curve"
    ),
    "LEAST_SPREAD": Basis(_LN, "repeats of one nccl-tests run agree no better", "intervals"),
    "LONE_DIP": Basis(
        "share of both neighbours' times", "chosen: a time below is a misreading", "which rows a curve drops"
    ),
    "DEFAULT_SPREAD": Basis(_LN, "chosen: of a curve with fewer than five sizes", "intervals"),
    "ABOVE_SPREAD": Basis(
        f"{_LN} per (factor of four above the range)²",
        "68 % of 563 curves stay within 0.05, 0.20 and 0.47 at 4, 16 and 64 times their largest size",
        "intervals above a curve's range", runs=563,
    ),
    "BELOW_SPREAD": Basis(
        f"{_LN} per octave of the smallest size over 512 bytes",
        "curves cut at 1 KiB, 16 KiB, 128 KiB and 1 MiB were off by 0.11, 0.35, 0.9 and 1.0 below the cut"
        " (68 %)",
        "intervals below a curve's range", runs=563,
    ),
    "LATENCY_BYTES": Basis(
        "bytes", "below it a message takes its latency, whatever its size: curves cut at 1 KiB were off by"
        " 0.11 below the cut", "intervals and notes below a curve's range", runs=563,
    ),
    "FAR_APART": Basis(
        "times in size",
        "sizes nearer than this do not gain by others' shapes (every other size of 563 curves: 2.39 %"
        " either way)",
        "between a curve's sizes", runs=563,
    ),
    "ON_A_LINE": Basis(
        "share of the time", "as LEAST_SPREAD: repeats agree no better", "between a curve's sizes"
    ),
    "KNOT_OCTAVES": Basis("octaves", "more knots changed nothing", "between a curve's sizes"),
    "FEWEST_KNOWN": Basis(
        "sizes", "chosen: fewer do not tell a curve from others", "curves measured at few sizes"
    ),
    "FEWEST_SHARED": Basis(
        "sizes", "chosen: known sizes that another curve must cover", "curves measured at few sizes"
    ),
    "ALIKE": Basis(
        "root mean square of ln(time ratio), its median taken out",
        "chosen, with LEVEL and STRAIGHT, on the six-size line of docs/accuracy.md: a curve's vote falls to"
        " 0.6",
        "curves measured at few sizes",
    ),
    "LEVEL": Basis(
        "share of ln(time ratio) that counts against a curve",
        "as ALIKE: a machine ten times faster shows other protocols", "curves measured at few sizes",
    ),
    "STRAIGHT": Basis(
        "votes of curves that agree perfectly", "as ALIKE: the vote for no detour",
        "curves measured at few sizes"
    ),
}  # fmt: skip
"""One entry for each figure above (a test keeps it so)."""
