"""The main file of `spark-submit`: runs `tidelog pipeline run` with its arguments in the driver.

spark-submit --master yarn --deploy-mode cluster spark_main.py earnings --data hdfs://names/pipelines
"""

import sys

from tidelog.cli.main import main

if __name__ == "__main__":
    main(["pipeline", "run", *sys.argv[1:]], prog_name="tidelog")
