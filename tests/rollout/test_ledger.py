"""What was judged can be judged again, the same or with other limits, by a restarted operator or by a person."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.rollout.gateways import Gateways, Served, session, with_custom, with_trouble

from tidewheel.cli.replay import replay as replay_command
from tidewheel.crds.rolloutchoices import Metric
from tidewheel.rollout.errors import LedgerError, SettingsError
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.judge.session import StepSession
from tidewheel.rollout.judge.settings import CustomMetric, JudgeSettings
from tidewheel.rollout.ledger.codec import from_text, to_compressed_text, to_json_text
from tidewheel.rollout.ledger.records import Ledger, LedgerTransition
from tidewheel.rollout.ledger.replay import changed, replay

SETTINGS = JudgeSettings(
    dry_run=frozenset({Metric.STALLS}), custom=(CustomMetric(name="refusals", query="{{version}}", limit=2.0),)
)
BASE = Served(14_850, errors=15)


def watch(judge: StepSession, gateways: Gateways, ledger: Ledger, canary: Served, blocks: int) -> Ledger:
    """So many blocks judged and recorded; every fifth reading is blind."""
    for block in range(blocks):
        gateways.serve(base=BASE, canary=canary)
        reading = with_custom(gateways.reading(), refusals=(1.0, 1.5))
        if block % 5 == 4:
            reading = with_trouble(reading, "ProviderError")
        verdict = judge.observe(reading)
        assert verdict is not None
        assert judge.layout is not None
        ledger = ledger.with_look(
            context=judge.step,
            settings=judge.settings,
            layout=judge.layout,
            verdict=verdict,
            block=judge.last_block,
        )
    return ledger


def recorded(canary: Served, blocks: int = 12) -> tuple[Ledger, StepSession, Gateways]:
    judge, gateways = session(SETTINGS), Gateways()
    judge.observe(with_custom(gateways.reading(), refusals=(1.0, 1.5)))
    return watch(judge, gateways, Ledger(), canary, blocks), judge, gateways


SLOW = Served(150, errors=0.15, tpot=Served(1).tpot * 1.6)
FAILING = Served(150, errors=3.0)


@pytest.mark.parametrize("write", [to_json_text, to_compressed_text], ids=["json", "compressed"])
def test_a_ledger_is_read_back_as_it_was_written(write: object) -> None:
    ledger, _, _ = recorded(SLOW)
    ledger = ledger.with_transition(LedgerTransition(at=1.0, rollout_id="r1", reason="StepStarted", message="x"))
    assert from_text(write(ledger)) == ledger  # type: ignore[operator]


def test_replay_comes_out_as_it_was_bit_for_bit() -> None:
    """C35"""
    ledger, _, _ = recorded(SLOW)
    again = replay(from_text(to_compressed_text(ledger)))
    assert len(again.looks) == 12
    assert not any(look.differs for look in again.looks)
    for look in again.looks:
        assert look.verdict is None or look.verdict.message == look.look.message
    assert again.first_breach is not None


def test_a_restarted_operator_goes_on_with_the_evidence() -> None:
    """C11: the verdict after the restart is the one without it."""
    ledger, judge, gateways = recorded(SLOW, blocks=4)
    layout, blocks = from_text(to_compressed_text(ledger)).blocks_of(judge.step, SETTINGS)
    restarted = StepSession(SETTINGS, judge.step, layout=layout, blocks=blocks)
    reading = with_custom(gateways.reading(), refusals=(1.0, 1.5))
    restarted.observe(reading)
    for _ in range(3):
        gateways.serve(base=BASE, canary=SLOW)
        reading = with_custom(gateways.reading(), refusals=(1.0, 1.5))
        verdicts = [one.observe(reading) for one in (judge, restarted)]
        assert verdicts[0] is not None
        assert verdicts[0] == verdicts[1]


def test_evidence_of_another_step_or_setting_is_not_taken_over() -> None:
    ledger, judge, _ = recorded(SLOW, blocks=3)
    assert ledger.blocks_of(replace(judge.step, step=1), SETTINGS) == (None, ())
    assert ledger.blocks_of(judge.step, JudgeSettings()) == (None, ())


def test_the_ring_is_bounded_and_small() -> None:
    judge, gateways = session(SETTINGS), Gateways(whole=True)
    judge.observe(with_custom(gateways.reading(), refusals=(1.0, 1.5)))
    ledger = Ledger()
    for _ in range(3):
        ledger = watch(judge, gateways, ledger, Served(150), 50)
    assert sum(len(step.looks) for step in ledger.steps) == 120
    assert ledger.steps[0].forgotten == 30
    assert len(to_compressed_text(ledger)) < 100_000
    assert replay(ledger).partial == (("r1", 0),)


def test_other_limits_would_have_done_otherwise() -> None:
    ledger, _, _ = recorded(FAILING)
    assert replay(ledger).first_breach is not None
    assert replay(ledger, change=changed(["maxErrorRateIncrease=0.05"])).first_breach is None
    literal = replay(ledger, change=changed(["mode=limits", "crossings=2"]))
    assert literal.first_breach is not None


@pytest.mark.parametrize(
    "wrong", ["maxErrorRate=1", "maxErrorRateIncrease", "loadRatio=1", "mode=Loud", "anyQuantile=7"]
)
def test_a_threshold_that_does_not_exist_is_refused(wrong: str) -> None:
    ledger, _, _ = recorded(FAILING, blocks=1)
    with pytest.raises(SettingsError):
        replay(ledger, change=changed([wrong]))


@pytest.mark.parametrize("text", ["", "{}", "tidewheel-ledger:!!!", '{"format": 99, "steps": []}', "[1]"])
def test_what_is_no_ledger_is_said_so(text: str) -> None:
    with pytest.raises(LedgerError):
        from_text(text)


def test_blind_looks_are_kept_once() -> None:
    judge, gateways = session(SETTINGS), Gateways()
    judge.observe(with_custom(gateways.reading(), refusals=(1.0, 1.5)))
    ledger = Ledger()
    for _ in range(30):
        gateways.serve(base=BASE, canary=Served(150), seconds=5)
        verdict = judge.observe(with_trouble(gateways.reading(), "ProviderError"))
        assert isinstance(verdict, Verdict)
        assert judge.layout is not None
        ledger = ledger.with_look(
            context=judge.step, settings=SETTINGS, layout=judge.layout, verdict=verdict, block=judge.last_block
        )
    assert len(ledger.steps[0].looks) == 1


def test_the_command_shows_what_another_threshold_would_have_done(tmp_path: Path) -> None:
    ledger, _, _ = recorded(FAILING)
    file = tmp_path / "chat.ledger"
    file.write_text(to_compressed_text(ledger))
    plain = CliRunner().invoke(replay_command, [str(file)])
    assert plain.exit_code == 0, plain.output
    assert "BREACH" in plain.output
    assert plain.output.splitlines()[-1].count("rolled back at") == 2
    other = CliRunner().invoke(
        replay_command, [str(file), "--with-threshold", "maxErrorRateIncrease=0.05", "--differences"]
    )
    assert other.exit_code == 0, other.output
    assert "BREACH -> " in other.output
    assert other.output.splitlines()[-1].endswith("replayed: not rolled back")
    lines = CliRunner().invoke(replay_command, [str(file), "-o", "json"]).output.splitlines()
    assert len(lines) == 12
    assert VerdictKind.BREACH.value in lines[-1]
