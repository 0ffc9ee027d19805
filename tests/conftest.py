"""What holds for every test."""

import signal

# A shell that starts a run in the background has it ignore SIGINT, and what the tests start would inherit
# it; those that send the signal need it to arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)
