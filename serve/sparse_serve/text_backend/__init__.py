"""The parts that the backend `sparse_serve_text` alone needs: limits, counters, what is answered later.

They run in Triton's Python process beside `triton/text_backend/model.py`, and need numpy at most.
"""
