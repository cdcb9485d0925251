"""Settings of the property-based tests in this folder."""

from hypothesis import HealthCheck, settings

# No deadline: a busy machine may be slow. All examples of a test may write into one tmp_path.
settings.register_profile(
    "unit",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("unit")
