"""Requests to stop, by real signals."""

import signal

import pytest

from rtpo.run.stopping import StopRequest


def test_a_signal_that_arrives_while_the_first_is_handled_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop, signals, again = StopRequest(), signal.Signals, iter([True])

    def named(number: int) -> signal.Signals:
        if next(again, False):
            signal.raise_signal(signal.SIGTERM)
        return signals(number)

    monkeypatch.setattr(signal, "Signals", named)
    with stop.listening():
        signal.raise_signal(signal.SIGTERM)
    assert (stop.reason, capsys.readouterr().out.count("finishing this phase")) == ("SIGTERM", 1)


def test_a_second_ctrl_c_stops_at_once() -> None:
    stop = StopRequest()
    with stop.listening():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stop.reason == "SIGINT"
