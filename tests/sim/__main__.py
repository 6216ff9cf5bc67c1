"""`python -m tests.sim [--seed N] [--runs N] [--plant NAME]`: runs of the log's simulator."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.sim.plants import PLANTS, planted
from tests.sim.world import run_seed


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--plant", choices=sorted(PLANTS), help="with this bug planted")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the members' logs")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL + 1)
    failed = 0
    began = time.perf_counter()
    for seed in range(args.seed, args.seed + args.runs):
        with planted(args.plant):
            result = run_seed(seed)
        if result.violations or args.runs == 1:
            print(result)
        if result.violations:
            failed += 1
            print(f"replay: python -m tests.sim --seed {seed}")
    print(f"{args.runs} runs, {failed} failed, {time.perf_counter() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
