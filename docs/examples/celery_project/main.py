"""Calls the tasks of tasks.py: python main.py (while `celery -A tasks worker` runs here)"""

from celery import chord, group
from tasks import remind, square, total

print(square.delay(12).get(timeout=60))
print(group(square.s(number) for number in range(5))().get(timeout=60))
print(chord(square.s(number) for number in range(100))(total.s()).get(timeout=60))

later = remind.apply_async(("tea",), countdown=2)  # it waits in the node, not in a worker
print(later.status, later.get(timeout=60).startswith("tea at"))
