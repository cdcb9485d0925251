"""Which GPU this task computes on; this room knows no plan."""
