"""How processes of one cluster show each other that they belong to it, without sending its secret."""
from __future__ import annotations

import hashlib
import hmac


def prove(token: str, role: str, nonce: str) -> str:
    """What only a holder of the secret can answer, in this role, to this question."""
    return hmac.new(token.encode(), f"{role} {nonce}".encode(), hashlib.sha256).hexdigest()
