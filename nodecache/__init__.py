"""placeholder until the flow lands."""
