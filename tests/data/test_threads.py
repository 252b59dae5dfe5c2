"""Results come in order, faults come through, and Ctrl-C at any moment ends it."""

import _thread
import subprocess
import sys
import threading

import pytest

from forerank.data.threads import map_in_threads
from waiting import LIMIT, wait_until


def test_results_come_in_the_order_of_the_items():
    others_done = threading.Event()

    def first_last(number):
        if number == 0:
            assert others_done.wait(LIMIT)
        if number == 6:  # the last that may be worked on before the first is done
            others_done.set()
        return number * number

    assert list(map_in_threads(first_last, range(200), workers=4, ahead=7)) == [n * n for n in range(200)]
    assert list(map_in_threads(first_last, [], workers=4)) == []


def test_a_fault_is_raised_in_its_place_and_no_thread_stays():
    before = _thread._count()
    results = map_in_threads(lambda number: 1 // (number - 5), range(50), workers=3)
    assert [next(results) for _ in range(5)] == [-1] * 5
    with pytest.raises(ZeroDivisionError):
        next(results)
    wait_until(lambda: _thread._count() <= before, "all threads end")


def test_no_more_is_done_ahead_than_allowed():
    """Only what was taken from the items can be worked on."""
    taken = []
    items = (taken.append(number) or number for number in range(1000))
    results = map_in_threads(abs, items, workers=2, ahead=10)
    for number in range(50):
        assert next(results) == number
        assert number < len(taken) <= number + 11
    results.close()


INTERRUPTED = """
import sys
from forerank.data.threads import map_in_threads

def interrupt_at(number):
    def count(frame, event, _):
        nonlocal number
        number -= 1
        if number == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt
    return count

for moment in range(1, 10_000):
    sys.setprofile(interrupt_at(moment))
    try:
        assert list(map_in_threads(abs, range(6), workers=2, ahead=3)) == list(range(6))
        sys.setprofile(None)
        break
    except KeyboardInterrupt:
        pass
print(moment)
"""


def test_an_interrupt_at_any_moment_ends_it():
    """One run for every call and return in the calling thread, interrupted just there."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert int(done.stdout) > 30
