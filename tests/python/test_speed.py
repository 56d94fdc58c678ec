from __future__ import annotations

from byteps.speed import INTERVAL_S, MAX_SAMPLES, SpeedMeter


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_no_sample_before_the_first_interval() -> None:
    meter = SpeedMeter(Clock())
    meter.add(1_000_000)
    assert meter.pop_oldest() == (0, -5.0)


def test_a_sample_is_the_mean_rate_of_its_interval() -> None:
    clock = Clock()
    meter = SpeedMeter(clock)
    meter.add(30_000_000)
    clock.now += 2 * INTERVAL_S
    meter.add(10_000_000)
    assert meter.pop_oldest() == (1_020_000, 2.0)
    assert meter.pop_oldest() == (0, -5.0)


def test_the_newest_samples_are_kept_and_the_oldest_comes_first() -> None:
    clock = Clock()
    meter = SpeedMeter(clock)
    for _ in range(MAX_SAMPLES + 2):
        clock.now += INTERVAL_S
        meter.add(1)
    assert meter.pop_oldest()[0] == int((1000 + 3 * INTERVAL_S) * 1000)
