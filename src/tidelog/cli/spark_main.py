"""The main file of `spark-submit`: runs `tidelog pipeline run` with its arguments in the driver.

spark-submit --master yarn --deploy-mode cluster spark_main.py earnings --data hdfs://names/pipelines
"""

import sys
from pathlib import Path

# Python searches the folder of its main file first, where `profile` is not the module that Spark wants.
own = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != own]

from tidelog.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main(["pipeline", "run", *sys.argv[1:]], prog_name="tidelog")
