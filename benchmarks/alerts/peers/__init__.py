"""The rules that people use today, a file each, from what their documentation and code say.

They judge the same numbers as ours do. A new one is a new file here, and one line of `PEERS`.
"""

from __future__ import annotations

from typing import Final

from benchmarks.alerts.peers.lightning import Lightning
from benchmarks.alerts.peers.megatron import Megatron
from benchmarks.alerts.peers.olmo import OlmoCore
from benchmarks.alerts.peers.peer import Peer
from benchmarks.alerts.peers.sagemaker import SageMaker
from benchmarks.alerts.peers.zclip import ZClip

_ALL: Final[tuple[type[Peer], ...]] = (SageMaker, OlmoCore, ZClip, Megatron, Lightning)

PEERS: Final[dict[str, Peer]] = {each.name: each() for each in _ALL}
"""Name to rules, in the order in which they are shown."""
