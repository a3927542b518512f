"""The resolver: cluster and profiles to a plan, or a refusal with its arithmetic. Pure.

subject -> shape (layouts with sizes, their memory) -> select (which one) -> ranks, ports, host, times -> make.
"""

from k3ctl.planner.make import make_plan
from k3ctl.planner.subject import engine_of, known, version_of

__all__ = ["engine_of", "known", "make_plan", "version_of"]
