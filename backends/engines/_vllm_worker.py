"""What a vLLM worker needs beside its own methods. It is imported by the server, in the server's environment.

``vllm serve ... --worker-extension-cls backends.engines._vllm_worker.ConductorWorker``, with this project on the path.
Of this project it imports what meets the sender of a broadcast; of vLLM nothing.
"""

from collections import Counter
from typing import Any, cast

from backends.engines._broadcast import Invitation, receiving


class ConductorWorker:
    """Mixed into a worker of vLLM 0.32, which has ``reload_weights`` and ``model_runner``."""

    def conductor_reload(self: Any, weights_path: str) -> None:
        """Reload weights from a folder, the output head too where it is tied to the embeddings.

        On a CPU each linear layer multiplies with a packed copy of its weight. A reload packs the layers anew that it
        loads; a tied head is not loaded, and goes on multiplying with what the server was started with.
        """
        self.reload_weights(weights_path=weights_path)
        self._conductor_pack_tied()

    def conductor_receive(self: Any, **invitation: Any) -> None:
        """Load weights that a sender broadcasts, as they come; one that fails half-way leaves some of each.

        Args:
            invitation: Where to meet, and what will be sent: ``backends.engines._broadcast.Invitation``.
        """
        with receiving(cast("Invitation", invitation)) as weights:
            self.reload_weights(weights_iterator=weights)
        self._conductor_pack_tied()

    def _conductor_pack_tied(self: Any) -> None:
        packed = [module for module in self.model_runner.get_model().modules() if hasattr(module, "cpu_linear")]
        owners = Counter(id(module.weight) for module in packed)
        for module in packed:
            if owners[id(module.weight)] > 1:
                module.quant_method.process_weights_after_loading(module)
