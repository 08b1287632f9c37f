"""JSON bodies of any size: small ones in one go, large ones in steps, between other requests."""
