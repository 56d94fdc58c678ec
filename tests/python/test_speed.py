from __future__ import annotations

from byteps.speed import INTERVAL_S, MAX_SAMPLES, SpeedMeter


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Total:
    nbytes = 0

    def __call__(self) -> float:
        return self.nbytes


def test_no_sample_before_the_first_interval() -> None:
    total = Total()
    meter = SpeedMeter(total, Clock())
    total.nbytes = 1_000_000
    meter.tick()
    assert meter.pop_oldest() == (0, -5.0)


def test_a_sample_is_the_mean_rate_of_its_interval() -> None:
    clock, total = Clock(), Total()
    meter = SpeedMeter(total, clock)
    total.nbytes = 30_000_000
    meter.tick()
    clock.now += 2 * INTERVAL_S
    total.nbytes += 10_000_000
    meter.tick()
    assert meter.pop_oldest() == (1_020_000, 2.0)
    assert meter.pop_oldest() == (0, -5.0)


def test_asking_takes_a_sample_too() -> None:
    clock, total = Clock(), Total()
    meter = SpeedMeter(total, clock)
    for megabytes in (10, 30):
        total.nbytes += megabytes * 1_000_000
        clock.now += INTERVAL_S
        assert meter.pop_oldest() == (int(clock.now * 1000), megabytes / INTERVAL_S)


def test_the_newest_samples_are_kept_and_the_oldest_comes_first() -> None:
    clock = Clock()
    meter = SpeedMeter(Total(), clock)
    for _ in range(MAX_SAMPLES + 2):
        clock.now += INTERVAL_S
        meter.tick()
    assert meter.pop_oldest()[0] == int((1000 + 3 * INTERVAL_S) * 1000)
