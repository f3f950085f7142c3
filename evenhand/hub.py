"""Whether the hub answers: asked once, so that a machine without network is not kept waiting by retries."""

import os
import socket
from functools import cache
from urllib.parse import urlparse

from huggingface_hub import constants

__all__ = ["ask_hub"]

PATIENCE = 3.0


@cache
def ask_hub() -> bool:
    """Whether the hub can be reached; where it cannot, what was downloaded before is still used."""
    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname, address.port or 443), timeout=PATIENCE).close()
    except OSError:
        constants.HF_HUB_OFFLINE = True
        return False
    return True
