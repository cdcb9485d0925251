"""What would run on this machine, and what is missing: looks and tells, and changes nothing."""
