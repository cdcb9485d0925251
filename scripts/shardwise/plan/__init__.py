"""From a config to a plan: shards, settings and memory figures."""
