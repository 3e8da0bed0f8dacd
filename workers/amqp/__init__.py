"""The AMQP 0-9-1 gateway: connections, channels, and what they mean in Warren (docs/design/039)."""
