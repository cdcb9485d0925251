"""Settings of the property-based tests in this folder."""

from hypothesis import HealthCheck, settings

# No deadline: a busy machine is no failure. Fixtures of tmp_path only lend a folder to write in.
settings.register_profile(
    "unit",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("unit")
