"""A scripted `nvidia-smi` on PATH: a program that prints recorded answers, and a torch that was
built for CUDA as far as its file of versions says.

Recorded from the driver's own format (`nvidia-smi -q -x`, `-L`, `topo -p2p r`), cut down to the
fields that are read and some beside them.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

GPU = """\
	<gpu id="00000000:{index:02X}:00.0">
		<product_name>{name}</product_name>
		<product_brand>NVIDIA</product_brand>
		<mig_mode>
			<current_mig>{mode}</current_mig>
			<pending_mig>{mode}</pending_mig>
		</mig_mode>
		<mig_devices>
			{migs}
		</mig_devices>
		<uuid>{uuid}</uuid>
		<minor_number>{index}</minor_number>
		<fb_memory_usage>
			<total>{total} MiB</total>
			<reserved>551 MiB</reserved>
			<used>{used} MiB</used>
			<free>{free} MiB</free>
		</fb_memory_usage>
		<bar1_memory_usage>
			<total>131072 MiB</total>
			<used>1 MiB</used>
			<free>131071 MiB</free>
		</bar1_memory_usage>
	</gpu>
"""
MIG = """\
<mig_device>
				<index>{index}</index>
				<gpu_instance_id>{instance}</gpu_instance_id>
				<compute_instance_id>0</compute_instance_id>
				<fb_memory_usage>
					<total>{total} MiB</total>
					<reserved>0 MiB</reserved>
					<used>{used} MiB</used>
					<free>{free} MiB</free>
				</fb_memory_usage>
			</mig_device>
"""
LOG = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<timestamp>Tue Nov 24 12:00:00 2026</timestamp>
	<driver_version>{driver}</driver_version>
	<cuda_version>{cuda}</cuda_version>
	<attached_gpus>{count}</attached_gpus>
{gpus}</nvidia_smi_log>
"""
PROGRAM = """\
#!{python} -S
import json, pathlib, sys
answers = json.loads(pathlib.Path({answers!r}).read_text())
answer = answers.get(" ".join(sys.argv[1:]))
if answer is None:
    print("Invalid combination of input arguments.")
    sys.exit(6)
print(answer, end="")
"""


class Card(NamedTuple):
    """One GPU: MiB of memory in all and free, and the MiB of each MIG device where it has any."""

    total: int = 81559
    free: int = 81004
    name: str = "NVIDIA H100 80GB HBM3"
    migs: tuple[int, ...] = ()


def uuid(index: int, mig: int | None = None) -> str:
    """Of a card, or of a MIG device on it; all begin alike up to the eighth letter."""
    tail = f"{index:04x}-4000-8000-0123456789ab"
    return f"GPU-aaaaaaa{index:x}-{tail}" if mig is None else f"MIG-bbbbbb{index:x}{mig:x}-{tail}"


def answers(
    cards: Sequence[Card], *, driver: str = "580.95.05", cuda: str = "13.0", peers: str = "OK"
) -> dict[str, str]:
    """What the program prints, by its arguments."""
    gpus, listed = "", ""
    for index, card in enumerate(cards):
        migs = "".join(
            MIG.format(index=n, instance=7 + n, total=size, used=12, free=size - 12)
            for n, size in enumerate(card.migs)
        )
        gpus += GPU.format(
            index=index, name=card.name, uuid=uuid(index), migs=migs or "None",
            mode="Enabled" if migs else "Disabled", total=card.total,
            used=card.total - card.free, free=card.free,
        )  # fmt: skip
        listed += f"GPU {index}: {card.name} (UUID: {uuid(index)})\n"
        for n, size in enumerate(card.migs):
            profile = f"MIG 1g.{round(size / 1000)}gb"
            listed += f"  {profile:<16} Device  {n}: (UUID: {uuid(index, n)})\n"
    names = [f"GPU{index}" for index in range(len(cards))]
    rows = [" \t" + "\t".join(names) + "\t"]
    for row in names:
        rows.append(f" {row}\t" + "\t".join("X" if row == name else peers for name in names) + "\t")
    legend = "\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    log = LOG.format(driver=driver, cuda=cuda, count=len(cards), gpus=gpus)
    return {"-q -x": log, "-L": listed, "topo -p2p r": "\n".join(rows) + legend}


def write_driver(folder: Path, told: dict[str, str]) -> Path:
    """The folder to put on PATH."""
    folder.mkdir()
    record = folder / "answers.json"
    record.write_text(json.dumps(told))
    program = folder / "nvidia-smi"
    program.write_text(PROGRAM.format(python=sys.executable, answers=str(record)))
    program.chmod(0o755)
    return folder


def cuda_machine(folder: Path, told: dict[str, str], *, torch: str = "13.0") -> dict[str, str]:
    """The environment of a process on a machine with this driver and a torch built for CUDA."""
    folder.mkdir(exist_ok=True)
    built = folder / "site" / "torch"
    built.mkdir(parents=True)
    (built / "__init__.py").write_text("raise ImportError('a folder of versions, no torch')\n")
    (built / "version.py").write_text(
        f"from typing import Optional\n\n__version__ = '2.13.0'\ncuda: Optional[str] = '{torch}'\n"
    )
    path = os.pathsep.join((str(write_driver(folder / "driver", told)), os.environ["PATH"]))
    modules = os.pathsep.join(filter(None, (str(folder / "site"), os.environ.get("PYTHONPATH"))))
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    return {**env, "PATH": path, "PYTHONPATH": modules}
