"""AMQP 0-9-1 as bytes: its methods and properties, frames and field tables."""
