"""Laws over sizes, orders and partitions."""
