"""What a real Prometheus, and its promtool, make of the metrics, the rules and the dashboard."""
