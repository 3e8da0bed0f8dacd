"""Memory that processes of one host share: regions, slots, rings, doorbells, identity. It knows nothing of messages."""
