"""A replica of fleet_main.py: `python fleet_replica.py [MODEL] --host HOST --port PORT [options of serve]`.

Its seed is that of the option --seed, so that an update can be seen. The model "broken" cannot be loaded.
"""

import argparse
import sys
from dataclasses import asdict

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.model == "broken":
        sys.exit("no such model")

    from chairlift.engine.runner.fake_model import FakeConfig
    from replica_main import main

    fake = FakeConfig(vocab_size=128, max_model_len=4096, num_blocks=2048, seconds_per_step=0.005, seed=options.seed)
    sys.exit(main({"fake": asdict(fake), "port": options.port}))
