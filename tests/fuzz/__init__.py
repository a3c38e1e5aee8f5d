"""What comes from outside, generated: whatever it is, the answer is a value or a refusal in words.

``make test`` tries some examples of each kind; ``make fuzz`` goes on for ``SECONDS`` with each,
from ``SEED`` on.
"""
