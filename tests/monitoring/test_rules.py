"""The metrics, the alerts and the dashboard, as judged by Prometheus' own promtool."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from shardwise.observe import metrics
from shardwise.observe.observer import Observer
from shardwise.records.failures import Failure

from tests import debian, factories, pretend

RULES = factories.ROOT / "docs" / "monitoring" / "alerts.yml"
DASHBOARD = json.loads(RULES.with_name("shardwise-dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]

RUN = 'job="shardwise", instance="n:1", results="/r"'


def series(name: str, values: str, labels: str = RUN) -> dict[str, str]:
    """An input series of promtool, with one sample per minute."""
    return {"series": f"{name}{{{labels}}}", "values": values}


def state(name: str, values: str) -> dict[str, str]:
    """The series of the number of shards in a state."""
    return series("shardwise_shards", values, f'{RUN}, state="{name}"')


NOW = series("shardwise_last_look_timestamp_seconds", "0+60x60")
LONG_AGO = series("shardwise_last_look_timestamp_seconds", "0x60")
MEDIAN, QUICK = (series("shardwise_median_shard_duration_seconds", f"{s}x60") for s in (100, 1))
YOUNG, OLD, TOO_OLD = (
    series("shardwise_oldest_running_shard_seconds", f"{seconds}x60", f'{RUN}, shard="7"')
    for seconds in (50, 299, 301)
)
WELL, STOPPED = (
    series("shardwise_stage_failed", f"{value}x60", f'{RUN}, stage="reduce"') for value in (0, 1)
)

FIRES = {
    "ShardwiseShardSlow": [[NOW, MEDIAN, TOO_OLD]],
    "ShardwiseShardsFailed": [[state("failed", "2x60")], [state("damaged", "1x60")]],
    "ShardwiseStageFailed": [[STOPPED]],
}

SILENT = {
    "ShardwiseShardSlow": [
        [NOW, MEDIAN, OLD], [NOW, QUICK, YOUNG], [LONG_AGO, MEDIAN, TOO_OLD],
    ],
    "ShardwiseShardsFailed": [[state("failed", "0x60"), state("damaged", "0x60")]],
    "ShardwiseStageFailed": [[WELL]],
}  # fmt: skip


def promtool(*words: str | Path, given: str = "") -> str:
    """Return the complaints of Debian's promtool; if it cannot be had, skip, or fail in CI."""
    try:
        prefix = debian.unpacked("prometheus", ("prometheus",))
    except debian.PackagesError as error:
        debian.none_here("Prometheus", error)
    line = [prefix / "usr" / "bin" / "promtool", *words]
    done = subprocess.run(line, input=given, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"failed\n{done.stdout}{done.stderr}"


def judge(folder: Path, *cases: tuple[list[dict[str, str]], dict[str, float]]) -> str:
    """Promtool's complaints about cases: series, and what queries must give after half an hour."""
    tests = [
        {"interval": "1m", "input_series": given, "promql_expr_test": [
            {"expr": expr, "eval_time": "30m", "exp_samples": [{"labels": "{}", "value": value}]}
            for expr, value in expected.items()
        ]}
        for given, expected in cases
    ]  # fmt: skip
    path = folder / "test.yml"
    path.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    return promtool("test", "rules", path)


def fires(alert: str) -> str:
    """A query that counts the firing alerts of a name."""
    return f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'


def test_the_rules_are_whole():
    """Promtool's lint has no complaint about the file of rules."""
    assert promtool("check", "rules", "--lint=all", "--lint-fatal", RULES) == ""


@pytest.mark.parametrize("alert", FIRES)
@pytest.mark.parametrize(("cases", "times"), [(FIRES, 1), (SILENT, 0)])
def test_an_alert_fires_on_its_trouble_alone(tmp_path, alert, cases, times):
    """Each alert fires on its trouble, and not on what merely looks like it."""
    assert judge(tmp_path, *((given, {fires(alert): times}) for given in cases[alert])) == ""


def test_a_run_answers_the_dashboard_and_raises_alerts(tmp_path):
    """Names, types and units satisfy Prometheus, and each query of a panel returns a figure."""
    made = pretend.run(
        tmp_path, shards=12, running=2, failed=1, waiting=1, suspect=1, at=time.time()
    )
    stage = f"reduce-{made.plan.key}"
    pretend.fail(made.plan.results, stage, Failure(stage, 75, "no room", "node01", made.at))
    text = metrics.text(Observer(made.root).look(made.at))
    assert promtool("check", "metrics", given=text) == ""
    samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
    given = [
        series(one.name, f"{one.value}x60", ",".join(f'{k}="{v}"' for k, v in one.labels.items()))
        for one in samples
    ]
    expected = {f"min({expr.replace('$results', '.*')}) >= bool 0": 1 for expr in QUERIES}
    expected |= {fires(f"Shardwise{name}Failed"): 1 for name in ("Shards", "Stage")}
    assert judge(tmp_path, (given, expected)) == ""
