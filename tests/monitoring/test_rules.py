"""The metrics, the alerts and the dashboard, as judged by Prometheus' own promtool."""

import json
import subprocess
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from shardwise.observe import metrics
from shardwise.observe.status import look
from shardwise.records.failures import Failure

from tests import debian, factories, pretend

RULES = factories.ROOT / "docs" / "monitoring" / "alerts.yml"
DASHBOARD = json.loads(RULES.with_name("shardwise-dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]

RUN = 'job="shardwise", instance="n:1", results="/r"'


def series(name: str, values: str, labels: str = RUN) -> dict[str, str]:
    """An input series of promtool, with one sample per minute."""
    return {"series": f"{name}{{{labels}}}", "values": values}


def age(seconds: int) -> dict[str, str]:
    """The series of a shard that has been at work for some seconds, of a median of 100 s."""
    return series("shardwise_oldest_running_shard_seconds", f"{seconds}x60", f'{RUN}, shard="7"')


NOW = series("shardwise_last_look_timestamp_seconds", "0+60x60")
LONG_AGO = series("shardwise_last_look_timestamp_seconds", "0x60")
MEDIAN, QUICK = (series("shardwise_median_shard_duration_seconds", f"{s}x60") for s in (100, 1))


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
    """Promtool's lint has no complaint about the file of rules, and the example reads it."""
    assert promtool("check", "rules", "--lint=all", "--lint-fatal", RULES) == ""
    assert promtool("check", "config", RULES.with_name("prometheus.yml")) == ""


def test_a_slow_shard_raises_an_alert(tmp_path):
    """Over three times the median and a minute, in figures of now; nothing else does."""
    cases = (
        ([NOW, MEDIAN, age(301)], 1), ([NOW, MEDIAN, age(299)], 0), ([NOW, QUICK, age(50)], 0),
        ([LONG_AGO, MEDIAN, age(301)], 0),
    )  # fmt: skip
    told = [(given, {fires("ShardwiseShardSlow"): times}) for given, times in cases]
    assert judge(tmp_path, *told) == ""


def test_a_run_answers_the_dashboard_and_raises_alerts(tmp_path):
    """Names, types and units satisfy Prometheus, and each query of a panel returns a figure."""
    made = pretend.run(
        tmp_path, shards=12, running=2, failed=1, waiting=1, suspect=1, at=time.time()
    )
    stage = f"reduce-{made.plan.key}"
    pretend.fail(made.plan.results, stage, Failure(stage, 75, "no room", "node01", made.at))
    text = metrics.text(look(made.root, made.at))
    assert promtool("check", "metrics", given=text) == ""
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    given = [
        series(one.name, f"{one.value}x60", ",".join(f'{k}="{v}"' for k, v in one.labels.items()))
        for one in samples
    ]
    (uuid, *_) = (s.labels["device"] for s in samples if s.name == "shardwise_device_done_shards")
    for name in ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE"):
        given.append(series(name, "50x60", f'instance="n:9400", Hostname="n", UUID="{uuid}"'))
    expected = {f"min({expr.replace('$results', '.*')}) >= bool 0": 1 for expr in QUERIES}
    expected |= {fires(f"Shardwise{name}Failed"): 1 for name in ("Shards", "Stage")}
    well = [series("shardwise_shards", "0x60", f'{RUN}, state="failed"')]
    assert judge(tmp_path, (given, expected), (well, {fires("ShardwiseShardsFailed"): 0})) == ""
