"""Each alert fires where it should, and nowhere else, by promtool's own evaluation."""

import json
from pathlib import Path

import pytest
import yaml
from shardwise.observe import metrics
from shardwise.observe.folder import Observer

from tests import pretend
from tests.monitoring.prometheus import RULES, promtool

RUN = 'job="shardwise", instance="n:1", results="/r"'
GPU = f'{RUN}, device="GPU-1", node="n1"'


def series(name: str, values: str, labels: str = RUN) -> dict[str, str]:
    """An input series of promtool, a sample a minute."""
    return {"series": f"{name}{{{labels}}}", "values": values}


def state(name: str, values: str) -> dict[str, str]:
    """Shards in a state."""
    return series("shardwise_shards", values, f'{RUN}, state="{name}"')


WAITING, NOBODY_WAITS = state("waiting", "5x60"), state("waiting", "0x60")
GOES_ON, HAS_ENDED = state("running", "1x60"), state("running", "0x60")
NOW = series("shardwise_last_look_timestamp_seconds", "0+60x60")
LONG_AGO = series("shardwise_last_look_timestamp_seconds", "0x60")
RUN_GOES_ON = [NOW, WAITING, GOES_ON]
NO_SHARD = series("shardwise_device_running_shards", "0x60", GPU)
AT_WORK = series("shardwise_device_running_shards", "1x60", GPU)
FREE = series("shardwise_device_suspect", "0x60", GPU)
MEDIAN = series("shardwise_median_shard_duration_seconds", "100x60")

SLOW = series("shardwise_oldest_running_shard_seconds", "301x60", f'{RUN}, shard="7"')


FIRES = {
    "ShardwiseDeviceIdle": [
        [*RUN_GOES_ON, NO_SHARD, FREE],
        # The others are all between two shards for a moment.
        [NOW, WAITING, state("running", "1x25 0x2 1x40"), NO_SHARD, FREE],
    ],
    "ShardwiseShardSlow": [[NOW, MEDIAN, SLOW]],
    "ShardwiseShardsFailed": [[state("failed", "2x60")], [state("damaged", "1x60")]],
    "ShardwiseStageFailed": [[series("shardwise_stage_failed", "1x60", f'{RUN}, stage="reduce"')]],
}

SILENT = {
    "ShardwiseDeviceIdle": [
        [NOW, GOES_ON, NOBODY_WAITS, NO_SHARD, FREE],
        [*RUN_GOES_ON, AT_WORK, FREE],
        [*RUN_GOES_ON, NO_SHARD, series("shardwise_device_suspect", "1x60", GPU)],
        [*RUN_GOES_ON, series("shardwise_device_running_shards", "1x25 0x5 1x30", GPU), FREE],
        # A run that was stopped, and the file of one that was stopped.
        [NOW, WAITING, HAS_ENDED, NO_SHARD, FREE],
        [LONG_AGO, WAITING, GOES_ON, NO_SHARD, FREE],
    ],
    "ShardwiseShardSlow": [
        [NOW, MEDIAN,
         series("shardwise_oldest_running_shard_seconds", "299x60", f'{RUN}, shard="7"')],
        [NOW, series("shardwise_median_shard_duration_seconds", "1x60"),
         series("shardwise_oldest_running_shard_seconds", "50x60", f'{RUN}, shard="7"')],
        [NOW, series("shardwise_oldest_running_shard_seconds", "9000x60", f'{RUN}, shard="7"')],
        [LONG_AGO, MEDIAN, SLOW],
    ],
    "ShardwiseShardsFailed": [[state("failed", "0x60"), state("damaged", "0x60"), WAITING]],
    "ShardwiseStageFailed": [[WAITING]],
}  # fmt: skip


def check(folder: Path, cases: list[dict]) -> None:
    """Have promtool judge some cases against the rules."""
    path = folder / "test.yml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m",
                                "tests": cases}))  # fmt: skip
    judged = promtool("test", "rules", path)
    assert judged.returncode == 0, judged.stdout + judged.stderr


def firing(alert: str, given: list[dict[str, str]], times: int) -> dict:
    """The case that so many alerts of a name fire after half an hour."""
    expr = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    expected = {"expr": expr, "eval_time": "30m",
                "exp_samples": [{"labels": "{}", "value": times}]}  # fmt: skip
    return {"interval": "1m", "input_series": given, "promql_expr_test": [expected]}


def test_every_alert_has_its_cases():
    """There is no alert of which it is not known when it fires, and none that no page explains."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    names = {rule["alert"] for group in groups for rule in group["rules"]}
    assert names == set(FIRES) == set(SILENT)
    page = (RULES.parents[1] / "monitoring.md").read_text()
    assert all(f"| `{name}` |" in page for name in names)


def test_the_rules_are_whole():
    """Promtool finds nothing to say against the file of rules."""
    judged = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_the_metrics_are_as_prometheus_has_them(tmp_path):
    """Promtool finds nothing to say against names, types, units and form of the metrics."""
    made = pretend.run(tmp_path, shards=12, running=2, failed=1, waiting=1, suspect=1)
    judged = promtool("check", "metrics", given=metrics.text(Observer(made.root).look(made.at)))
    assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")


@pytest.mark.parametrize("alert", FIRES)
@pytest.mark.parametrize(("cases", "times"), [(FIRES, 1), (SILENT, 0)])
def test_an_alert_fires_on_its_trouble_alone(tmp_path, alert, cases, times):
    """By promtool; no alert fires on what merely looks like its trouble."""
    check(tmp_path, [firing(alert, given, times) for given in cases[alert]])
