"""Which GPU this task computes on.

Grants, leases and NVML's answers come in; a device goes out. This room knows no plan.
"""
